// Whole compressions and whole decode steps, as a device session does them, and what they ask of the device.
#pragma once

#include "bench.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {

/// A layer's compression by options.policy: the time of its operations, each of which is waited for.
BenchResult bench_compress(const BenchOptions& options);

/// Decode steps by options.policy, taken one after the other, their records included, against attention over the same
/// cache.
BenchResult bench_step(const BenchOptions& options);

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
