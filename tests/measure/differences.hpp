// Results of an operation that is repeated very often, compared where they are.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>

namespace kvbound::cuda {

/// A number that no operation writes.
inline constexpr int64_t kUnwrittenNumber = -9;

inline namespace KVBOUND_CUDA_BUILD {

/// Adds to *differences how many numbers are others than expected, and sets all to kUnwrittenNumber.
///
/// numbers, expected  [count], device memory
/// differences        device memory
void count_differences(int64_t* numbers, const int64_t* expected, int64_t count, int* differences,
                       Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
