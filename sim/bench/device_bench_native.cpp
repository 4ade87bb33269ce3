// The native build of device_bench.cpp; without a CUDA toolkit, functions that throw.
#ifdef KVBOUND_HAS_NATIVE

#define KVBOUND_CUDA_NATIVE
#include "device_bench.cpp"  // NOLINT(bugprone-suspicious-include): once more, for the other build

#else

#include <kvbound/reference/core/error.hpp>

#include "device_bench.hpp"

namespace kvbound::sim::native {

Accelerator accelerator() { throw NoDevice("no CUDA device: this program was built without a CUDA toolkit"); }
std::span<const BenchOperation> bench_operations() { return {}; }

}  // namespace kvbound::sim::native

#endif
