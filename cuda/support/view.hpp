// Views of device memory, for callers of the operations. Row-major; every row begins on 16 bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "storage.hpp"

namespace kvbound::cuda {

/// slices x rows x cols stored numbers in device memory.
///
/// data is 16-byte aligned; row_stride and slice_stride are multiples of 16 bytes,
/// row_stride >= padded<T>(cols), and the numbers between cols and padded<T>(cols) of every row are 0, so
/// that rows are read by whole loads alone. Operations throw ShapeMismatch for other strides; the caller
/// ensures that the padding is 0.
template <class T>
struct DeviceTensor {
  T* data = nullptr;
  int64_t slices = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;    ///< numbers from one row to the next
  int64_t slice_stride = 0;  ///< numbers from one slice to the next

  /// A view for writing converts to one for reading. A template, because nvcc warns of a conversion
  /// to the same type (554-D).
  template <class U>
  requires(!std::is_const_v<T> && std::is_same_v<U, const T>) operator DeviceTensor<U>() const {
    return {data, slices, rows, cols, row_stride, slice_stride};
  }
};

/// A matrix of numbers in device memory: row r begins at data + r * row_stride.
template <class T>
struct NumberRows {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t row_stride = 0;
};

/// The pages of a cache, as serving engines lay caches out: row r of KV head g is row r % page_size of page
/// table[g, r / page_size], with page_size = 2^size_bits. Without a table KV head g's rows are the g-th page.
struct PageTable {
  static constexpr int kLeastBits = 6;  ///< of page_size: the rows of a kernel's tile

  const int32_t* table = nullptr;  ///< [kv_heads, pages_of_head], device memory: slices of keys and of values
  int32_t kv_heads = 0, pages_of_head = 0;
  int32_t size_bits = kLeastBits;
};

/// A layer's cache, or those of several: for each KV head its entries and room for more.
template <Storage T>
struct CacheView {
  DeviceTensor<const T> keys;    ///< [kv_heads, capacity, head_dim]; by pages: [pages, page_size, head_dim]
  DeviceTensor<const T> values;  ///< likewise
  const int64_t* entries = nullptr;  ///< [kv_heads], device memory: the number of rows in use, 0..capacity
  const float* log_votes = nullptr;  ///< [kv_heads, capacity], natural log; null: every entry counts once
  /// So many layers or requests have the KV heads, as many each, one after the other: results are of each
  /// what they would be of it alone.
  int64_t segments = 1;
  PageTable pages = {};

  int64_t kv_heads() const { return pages.table ? pages.kv_heads : keys.slices; }
  int64_t capacity() const {
    return pages.table ? int64_t{pages.pages_of_head} << pages.size_bits : keys.rows;
  }
};

/// The observation window over a whole prompt, as reference::window_attention sees it: window query i sits at
/// position tokens - window + i and attends to keys 0..that position.
template <Storage T>
struct WindowView {
  DeviceTensor<const T> queries;  ///< [query_heads, window, head_dim]
  DeviceTensor<const T> keys;     ///< [kv_heads, tokens, head_dim]; kv_heads divides query_heads
  double scale = 1;
};

/// Which rows of a cache hold which entries; device memory. A row is a slot: an evicted entry's slot is taken
/// by the next one, so that nothing moves, and positions do not ascend.
struct CacheSlots {
  int64_t kv_heads = 0;
  int64_t capacity = 0;
  int64_t* entries = nullptr;    ///< [kv_heads]: slots 0..entries - 1 are in use, but for the free one
  int64_t* free = nullptr;       ///< [kv_heads]: the slot whose entry was evicted last; -1: none
  int64_t* newest = nullptr;     ///< [kv_heads]: the slot of the entry that was appended last
  int64_t* positions = nullptr;  ///< [kv_heads, capacity]; null: not recorded
  /// [kv_heads, capacity]: of merged entries how many they stand for, and the natural log of
  /// that; null: all stand for one
  float *votes = nullptr, *log_votes = nullptr;
  int64_t segments = 1;  ///< as in CacheView
  PageTable pages = {};  ///< likewise
};

}  // namespace kvbound::cuda
