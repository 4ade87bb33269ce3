// Checks of device arguments, with the values in the message; require_equal is the reference's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/shape_check.hpp>

#include "device.hpp"
#include "view.hpp"

namespace kvbound::cuda {

/// Throws ShapeMismatch unless first <= number <= last.
inline void require_range(std::string_view what, int64_t number, int64_t first, int64_t last) {
  if (first <= number && number <= last) return;
  throw ShapeMismatch(std::string(what) + " is " + std::to_string(number) + ", outside " +
                      std::to_string(first) + ".." + std::to_string(last));
}

/// The largest head_dim that operations take.
inline constexpr int64_t kMostHeadDim = 256;

/// Throws ShapeMismatch unless kv_heads divides query_heads.
inline void require_groups(int64_t query_heads, int64_t kv_heads) {
  if (kv_heads > 0 && query_heads > 0 && query_heads % kv_heads == 0) return;
  throw ShapeMismatch(std::to_string(query_heads) + " query heads cannot share " + std::to_string(kv_heads) +
                      " KV heads");
}

/// Throws ShapeMismatch for a tensor whose layout is not the one that view.hpp requires.
template <class T>
void require_layout(std::string_view what, const DeviceTensor<T>& tensor) {
  using Number = std::remove_const_t<T>;
  const std::string name(what);
  const auto require_whole = [&](const std::string& which, int64_t stride) {
    if (stride % kVector<Number> == 0) return;
    throw ShapeMismatch(which + " of " + name + " is " + std::to_string(stride) +
                        " numbers, not a multiple of 16 bytes");
  };
  if (tensor.slices < 0 || tensor.rows < 0 || tensor.cols < 0) {
    throw ShapeMismatch(name + " has " + std::to_string(tensor.slices) + " x " + std::to_string(tensor.rows) +
                        " x " + std::to_string(tensor.cols) + " numbers");
  }
  require_whole("row_stride", tensor.row_stride);
  require_whole("slice_stride", tensor.slice_stride);
  if (tensor.row_stride < padded<Number>(tensor.cols)) {
    throw ShapeMismatch("row_stride of " + name + " is " + std::to_string(tensor.row_stride) + " but " +
                        std::to_string(tensor.cols) + " columns take " +
                        std::to_string(padded<Number>(tensor.cols)));
  }
  if (reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) {
    throw ShapeMismatch(name + " does not begin on 16 bytes");
  }
}

/// Throws ShapeMismatch unless a cache's keys and values lie in the same slices, and in pages of a size that
/// kernels take.
template <class T>
void require_pages(const CacheView<T>& cache) {
  const PageTable& pages = cache.pages;
  require_equal("slices of keys", cache.keys.slices, "slices of values", cache.values.slices);
  require_equal("rows of keys", cache.keys.rows, "rows of values", cache.values.rows);
  if (!pages.table) return;
  require_range("bits of the page size", pages.size_bits, PageTable::kLeastBits, 30);
  require_equal("rows of keys", cache.keys.rows, "the page size", int64_t{1} << pages.size_bits);
  require_range("KV heads of the page table", pages.kv_heads, 0, INT32_MAX);
  require_range("pages of a KV head", pages.pages_of_head, 0, INT32_MAX >> pages.size_bits);
}

/// Throws ShapeMismatch if the workspace has fewer bytes than an operation needs, or is not aligned.
inline void require_workspace(const Workspace& workspace, int64_t bytes) {
  if (workspace.bytes < bytes) {
    throw ShapeMismatch("the workspace has " + std::to_string(workspace.bytes) + " bytes but " +
                        std::to_string(bytes) + " are needed");
  }
  if (bytes > 0 && reinterpret_cast<uintptr_t>(workspace.data) % 256 != 0) {
    throw ShapeMismatch("the workspace does not begin on 256 bytes");
  }
}

}  // namespace kvbound::cuda
