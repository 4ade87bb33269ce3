// Tensors in device memory from which boxes are copied as a whole.
#pragma once

#include <cstdint>
#include <vector>

#include "build.hpp"
#include "swizzle.hpp"

namespace kvbound::cuda {

/// A tensor of two or three dimensions, and the box of it that one copy takes. The innermost dimension, whose numbers
/// are adjacent, comes first: columns, rows, planes.
struct TensorTile {
  std::vector<int64_t> extents;  ///< numbers
  std::vector<int64_t> strides;  ///< bytes from one row to the next, and from one plane to the next
  std::vector<int64_t> box;      ///< numbers
  Swizzle swizzle = Swizzle::kNone;
};

inline namespace KVBOUND_CUDA_BUILD {

/// Throws ShapeMismatch unless TMA can copy such boxes: 2 or 3 dimensions; extents 1..2^32; strides positive multiples
/// of 16 below 2^40; box lengths 1..256; rows of a box multiples of 16 bytes, and with a swizzle exactly as long as its
/// span; an address that is a multiple of 16.
/// source  CUDA driver API, cuTensorMapEncodeTiled. Rows shorter than the span are possible, too, but not needed here.
void require_copyable(const TensorTile& tile, const void* data, int64_t bytes_of_number);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
