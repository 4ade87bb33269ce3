// What the processor does for a cache on a device.
#pragma once

#include "bench.hpp"

namespace kvbound::sim {

/// A layer's keys and values as they are uploaded, in BF16: copied where they were recorded so, or rounded
/// from doubles; against a copy of as many bytes.
BenchResult bench_upload(const BenchOptions& options);

/// A decode step's inputs rounded to BF16 or copied, and its record made of what has arrived.
BenchResult bench_step_host(const BenchOptions& options);

}  // namespace kvbound::sim
