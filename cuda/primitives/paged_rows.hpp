// Where a cache's rows lie: in one piece for each KV head, or in pages.
#pragma once

#include <kvbound/cuda/support/view.hpp>

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A row of a slice: of a KV head's, or of a page's.
struct RowPlace {
  unsigned slice, row;
};

/// Where a KV head's row lies, and the rows behind it to the end of its tile: the next multiple of 64.
__device__ __forceinline__ RowPlace place_of(const PageTable& pages, int64_t kv_head, int64_t row_of_head) {
  const auto g = static_cast<unsigned>(kv_head), row = static_cast<unsigned>(row_of_head);
  if (!pages.table) return {g, row};
  const unsigned page = row >> pages.size_bits;
  return {static_cast<unsigned>(pages.table[g * pages.pages_of_head + page]),
          row - (page << pages.size_bits)};
}

/// A cache's keys or values by vectors of 16 bytes, for kernels in which few instructions may precede the
/// first copy.
struct CacheVectors {
  const uint4* data;
  uint32_t slice_stride, row_stride;

  template <Storage T>
  explicit CacheVectors(const DeviceTensor<const T>& rows)
      : data(reinterpret_cast<const uint4*>(rows.data)),
        slice_stride(static_cast<uint32_t>(rows.slice_stride / kVector<T>)),
        row_stride(static_cast<uint32_t>(rows.row_stride / kVector<T>)) {}

  __device__ const uint4* at(const RowPlace& place) const {
    return data + uint64_t{place.slice} * slice_stride + uint64_t{place.row} * row_stride;
  }
};

/// Where the numbers of a row begin.
template <class T>
__device__ T* numbers_at(const DeviceTensor<T>& rows, const RowPlace& place) {
  return rows.data + place.slice * static_cast<uint64_t>(rows.slice_stride) +
         place.row * static_cast<uint64_t>(rows.row_stride);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
