// Arrays of several layers or requests as one: the rows of the first, then those of the second, and so on.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The shape of several layers or requests of one shape together.
inline LayerShape joined(const LayerShape& shape, int64_t parts) {
  return {parts * shape.query_heads, parts * shape.kv_heads, shape.head_dim, shape.model_dim};
}

/// What an array has of each KV head, or of each query head, as a row.
template <class T>
NumberRows<T> head_rows(Buffer<T>& numbers) {
  return {numbers.data(), numbers.size(), 1};
}
inline NumberRows<float> head_rows(DeviceMatrix& matrix) {
  return {matrix.data(), matrix.rows(), matrix.cols()};
}
inline NumberRows<int64_t> head_rows(IndexLists& lists) {
  return {lists.data(), lists.indices().size() / lists.stride(), lists.stride()};
}
template <Storage T>
NumberRows<T> head_rows(StoredTensor<T>& tensor) {
  const DeviceTensor<T> view = tensor.view();
  return {view.data, view.slices, view.slice_stride};
}

/// Queues the copies of an array's rows of all parts to that of `all`, which has as many rows together.
/// Numbers behind a shorter row are left as they are.
///
/// parts  of pointers to Part
template <class Parts, class Part, class Array>
void join(const Parts& parts, Array Part::*array, Part& all, Stream stream) {
  auto to = head_rows(all.*array);
  constexpr auto kBytes = static_cast<int64_t>(sizeof(*to.data));
  for (Part* const part : parts) {
    const auto from = head_rows(part->*array);
    detail::queue_rows_on_device(to.data, to.row_stride * kBytes, from.data, from.row_stride * kBytes,
                                 from.row_stride * kBytes, from.rows, stream);
    to.data += from.rows * to.row_stride;
  }
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
