#include <kvbound/cuda/support/build.hpp>
#include <kvbound/sim/options/runs.hpp>

#include "bench.hpp"
#include "device_bench.hpp"

namespace kvbound::sim {

std::span<const BenchOperation> bench_operations(std::string_view backend) {
  if (backend == kReference) return reference_bench_operations();
  return backend == "emulated" ? KVBOUND_CUDA_BUILD::bench_operations() : native::bench_operations();
}

Accelerator accelerator(std::string_view backend) {
  return backend == "emulated" ? KVBOUND_CUDA_BUILD::accelerator() : native::accelerator();
}

}  // namespace kvbound::sim
