// Tensors in device memory from which boxes are copied as a whole.
#pragma once

#include <array>
#include <cstdint>

#include "build.hpp"
#include "swizzle.hpp"

namespace kvbound::cuda {

/// A tensor, and the box of it that one copy takes. The innermost dimension, whose numbers are adjacent,
/// comes first: columns, rows, planes.
struct TensorTile {
  std::array<int64_t, 3> extents;  ///< numbers
  std::array<int64_t, 2> strides;  ///< bytes from one row to the next, and from one plane to the next
  std::array<int64_t, 3> box;      ///< numbers
};

inline namespace KVBOUND_CUDA_BUILD {

/// Throws ShapeMismatch unless TMA can copy such boxes: extents 1..2^32; strides positive multiples of
/// 16 below 2^40; box lengths 1..256; rows of a box exactly as long as the swizzle's span; an address
/// that is a multiple of 16.
/// source  CUDA driver API, cuTensorMapEncodeTiled. Rows shorter than the span are possible,
///         too, but not needed here.
void require_copyable(const TensorTile& tile, const void* data, int64_t bytes_of_number);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
