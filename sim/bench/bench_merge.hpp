// How fast merging is.
#pragma once

#include "bench.hpp"

namespace kvbound::sim {

/// For each of one KV head's keys that leave at a budget of 20 % the nearest of those that stay, against DGEMM's rate.
BenchResult bench_nearest_key(const BenchOptions& options);

}  // namespace kvbound::sim
