// bench on a device: every operation of the cuda/ folder beside what the device can do at most, by the device's clock.
//
// In every round the operation, a copy and a product of matrices are timed in turn, each so often in a row that it takes
// 10 ms, after one call that does not count. An operation works on copies of its arguments in turn, which together are
// larger than the L2 cache four times over, so that nothing of them is there when their turn comes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bench.hpp"

namespace kvbound::sim {

/// What a device backend runs on.
struct Accelerator {
  std::string name;
  int compute_capability = 0;  ///< 90 for 9.0
  int64_t multiprocessors = 0;
  int64_t memory = 0;                 ///< bytes
  int64_t l2_bytes = 0;               ///< of the cache that buffers have to exceed
  std::optional<std::string> driver;  ///< its version; nullopt: unknown, or there is none
  std::optional<std::string>
      matrix_library;             ///< the cuBLAS found when the program runs, whose rate is then the roofline
  std::string no_matrix_library;  ///< why there is none
};

namespace emulated {
Accelerator accelerator();
std::span<const BenchOperation> bench_operations();
}  // namespace emulated

namespace native {
/// Throws NoDevice, and so does every operation.
Accelerator accelerator();
std::span<const BenchOperation> bench_operations();
}  // namespace native

/// Of the backend "emulated" or "cuda".
Accelerator accelerator(std::string_view backend);

}  // namespace kvbound::sim
