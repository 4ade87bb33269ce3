// bench on a device: every operation of the cuda/ folder, relative to the device's own peak
// rates, by the device's clock.
//
// In every round the operation, a copy and a matrix product are timed in turn. Each is called repeatedly for
// 10 ms, as one recording, after one uncounted call. The calls of an operation use several copies of its
// arguments in turn, which together are four times as large as the L2 cache, so that a copy is no longer
// cached when its turn comes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bench.hpp"

namespace kvbound::sim {

/// The device of a device backend.
struct Accelerator {
  std::string name;
  int compute_capability = 0;  ///< 90 for 9.0
  int64_t multiprocessors = 0;
  int64_t memory = 0;                         ///< bytes
  int64_t l2_bytes = 0;                       ///< size of the L2 cache
  std::optional<std::string> driver;          ///< driver version; nullopt: unknown, or there is no driver
  std::optional<std::string> matrix_library;  ///< cuBLAS, if found at run time; its rate is then the roofline
  std::string no_matrix_library;              ///< why no cuBLAS was found
  std::string norms_kernel;                   ///< cuda::NormsChoice::why, for head_dim 128
};

// Of the emulated kernels, in a program with KVBOUND_COUNTED of those that count what they do
// (cuda/support/build.hpp).
namespace emulated {
Accelerator accelerator();
std::span<const BenchOperation> bench_operations();
}  // namespace emulated

namespace counted {
Accelerator accelerator();
std::span<const BenchOperation> bench_operations();
}  // namespace counted

namespace native {
/// Throws NoDevice if there is no device, as every operation does.
Accelerator accelerator();
std::span<const BenchOperation> bench_operations();
}  // namespace native

/// The device of the backend "emulated" or "cuda".
Accelerator accelerator(std::string_view backend);

}  // namespace kvbound::sim
