// Benchmarks of merging.
#pragma once

#include "bench.hpp"

namespace kvbound::sim {

/// For each of one KV head's keys that are evicted at a budget of 20 % the nearest kept key, against DGEMM's rate.
BenchResult bench_nearest_key(const BenchOptions& options);

}  // namespace kvbound::sim
