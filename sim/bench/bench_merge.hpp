// The speed of merging.
#pragma once

#include "bench.hpp"

namespace kvbound::sim {

/// For each key of one KV head that is evicted at a budget of 20 %, finds the nearest kept
/// key; against DGEMM's rate.
BenchResult bench_nearest_key(const BenchOptions& options);

}  // namespace kvbound::sim
