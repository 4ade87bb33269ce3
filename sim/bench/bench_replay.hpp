// A whole replay by several policies: how far more threads would speed it up.
#pragma once

#include "bench.hpp"

namespace kvbound::sim {

/// Replays a generated layer by ten policies on one thread, times every piece of its parallel loops and what
/// lies outside them, and computes from these times what 64 threads would take
/// (reference/core/parallel_times.hpp).
BenchResult bench_replay(const BenchOptions& options);

}  // namespace kvbound::sim
