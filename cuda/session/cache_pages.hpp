// The pages of a session's cache, and its page table.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The first page of every KV head, then the second one of every head, and so on: so the pages that a cache
/// has stay where they are when it grows, and no two pages of a head are neighbours.
///
///     KV head    0  1  2  0  1  2  0  1  2
///     rows       0 .. 63  64..127  128 ..     of pages of 64 rows
class CachePages {
 public:
  /// None: a KV head's rows lie one behind the other.
  CachePages() = default;
  /// page_size  rows: a power of two, at least 64
  /// capacity   rows of a KV head: a multiple of page_size
  CachePages(int64_t kv_heads, int64_t capacity, int64_t page_size, Stream stream)
      : kv_heads_(kv_heads), of_head_(capacity / page_size), page_size_(page_size) {
    std::vector<int32_t> table(kv_heads * of_head_);
    for (int64_t g = 0; g < kv_heads; ++g) {
      for (int64_t page = 0; page < of_head_; ++page)
        table[g * of_head_ + page] = static_cast<int32_t>(page * kv_heads + g);
    }
    table_ = Buffer<int32_t>(std::span<const int32_t>(table), stream);
  }

  PageTable view() const {
    if (page_size_ == 0) return {};
    return {table_.data(), static_cast<int32_t>(kv_heads_), static_cast<int32_t>(of_head_),
            std::countr_zero(static_cast<uint64_t>(page_size_))};
  }
  int64_t of_head() const { return of_head_; }
  int64_t count() const { return kv_heads_ * of_head_; }
  int64_t page_size() const { return page_size_; }  ///< 0: none

 private:
  int64_t kv_heads_ = 0, of_head_ = 0, page_size_ = 0;
  Buffer<int32_t> table_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
