// Boxes of rows that TMA copies: 64 columns of 16-bit numbers, 128 bytes, which is what its swizzle permutes,
// of so many rows of one slice.
#pragma once

#include <kvbound/cuda/support/view.hpp>

#include "tensor_core.hpp"
#include "tensor_load.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

inline constexpr int kBoxColumns = 64;

/// Whether a map of them exists: TMA takes neither empty tensors nor, of several slices, a stride of 0.
template <Storage16 T>
bool has_row_boxes(const DeviceTensor<const T>& rows) {
  return rows.rows > 0 && (rows.slices == 1 || (rows.slices > 1 && rows.slice_stride > 0));
}

template <Storage16 T>
TensorMap row_boxes(const DeviceTensor<const T>& rows, int64_t rows_of_box) {
  const int64_t slice_stride = rows.slices == 1 ? rows.row_stride : rows.slice_stride;
  return tensor_map(rows.data, {{rows.cols, rows.rows, rows.slices},
                                {rows.row_stride * 2, slice_stride * 2},
                                {kBoxColumns, rows_of_box, 1}});
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
