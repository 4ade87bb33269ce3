// The bench of the native build where there is none: without a CUDA toolkit.
#include <kvbound/reference/core/error.hpp>

#include "device_bench.hpp"

namespace kvbound::sim::native {

Accelerator accelerator() { throw NoDevice("no CUDA device: this program was built without a CUDA toolkit"); }
std::span<const BenchOperation> bench_operations() { return {}; }

}  // namespace kvbound::sim::native
