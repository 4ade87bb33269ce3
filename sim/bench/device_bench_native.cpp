// The native build of what device_bench.cpp consists of; without a CUDA toolkit, functions that throw.
#ifdef KVBOUND_HAS_NATIVE

#define KVBOUND_CUDA_NATIVE
// NOLINTBEGIN(bugprone-suspicious-include): once more, for the other build
#include "device_bench.cpp"
#include "device_measure.cpp"
#include "device_sessions.cpp"
// NOLINTEND(bugprone-suspicious-include)

#else

#include <kvbound/reference/core/error.hpp>

#include "device_bench.hpp"

namespace kvbound::sim::native {

Accelerator accelerator() { throw NoDevice("no CUDA device: this program was built without a CUDA toolkit"); }
std::span<const BenchOperation> bench_operations() { return {}; }

}  // namespace kvbound::sim::native

#endif
