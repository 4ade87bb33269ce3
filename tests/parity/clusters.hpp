// Clusters in device memory, and what a merge of them must give.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <kvbound/cuda/merging/weighted_mean.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>

#include "support.hpp"

namespace kvbound::parity {

using Positions = std::vector<int64_t>;

/// Lists of positions in device memory, -5 behind each.
class Lists {
 public:
  Lists(const std::vector<Positions>& lists, int64_t stride) : stride_(stride) {
    Positions all(lists.size() * static_cast<size_t>(stride), -5), counts;
    for (size_t g = 0; g < lists.size(); ++g) {
      std::ranges::copy(lists[g], all.begin() + static_cast<std::ptrdiff_t>(g) * stride);
      counts.push_back(std::ssize(lists[g]));
    }
    positions_ = cuda::upload(all);
    count_ = cuda::upload(counts);
  }

  cuda::PositionLists view() { return {positions_.data(), count_.data(), stride_}; }
  /// Fails the test if something was written behind a list.
  std::vector<Positions> download() const {
    const Positions all = cuda::download(positions_), counts = cuda::download(count_);
    std::vector<Positions> lists;
    for (size_t g = 0; g < counts.size(); ++g) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(g) * stride_;
      lists.emplace_back(first, first + counts[g]);
      EXPECT_TRUE(
          std::all_of(first + counts[g], first + stride_, [](int64_t position) { return position == -5; }));
    }
    return lists;
  }

 private:
  int64_t stride_;
  cuda::Buffer<int64_t> positions_, count_;
};

/// How the entries of each KV head merge.
struct ClusterCase {
  int64_t tokens = 60;
  Positions kept = {9, 5};  ///< per KV head: how many entries
  bool sink = false;        ///< most members have the first kept entry as their target

  int64_t kv_heads() const { return std::ssize(kept); }
  int64_t capacity() const { return *std::ranges::max_element(kept) + 2; }
};

/// The kept entries are spread over all positions; of the others every tenth is dropped.
class ClustersOf {
 public:
  explicit ClustersOf(const ClusterCase& c) : c_(c) {
    Positions kept(c.kv_heads() * c.capacity(), -5), members(c.kv_heads() * c.tokens, -5), offsets;
    for (int64_t g = 0; g < c.kv_heads(); ++g) {
      std::vector<Positions>& own = clusters_.emplace_back(c.kept[g]);
      for (int64_t i = 0; i < c.kept[g]; ++i) own[i] = {i * c.tokens / c.kept[g]};
      for (int64_t j = 0, next = 0; j < c.tokens; ++j) {
        if (next < c.kept[g] && own[next].front() == j) {
          ++next;
        } else if (j % 10 != 7 && c.kept[g] > 0) {
          own[c.sink && j % 8 > 0 ? 0 : (j * 7919 + g) % c.kept[g]].push_back(j);
        }
      }
      auto place = members.begin() + g * c.tokens;
      for (int64_t i = 0; i <= c.capacity(); ++i) {
        offsets.push_back(place - (members.begin() + g * c.tokens));
        if (i >= c.kept[g]) continue;
        kept[g * c.capacity() + i] = own[i].front();
        place = std::copy(own[i].begin() + 1, own[i].end(), place);
      }
    }
    kept_ = cuda::upload(kept);
    counts_ = cuda::upload(c.kept);
    members_ = cuda::upload(members);
    offsets_ = cuda::upload(offsets);
  }

  cuda::MergedEntries view() {
    return {{kept_.data(), counts_.data(), c_.capacity()},
            {members_.data(), c_.tokens, offsets_.data(), c_.capacity()}};
  }
  /// The kept entry and its members, by KV head and kept entry.
  const std::vector<std::vector<Positions>>& lists() const { return clusters_; }

 private:
  ClusterCase c_;
  std::vector<std::vector<Positions>> clusters_;
  cuda::Buffer<int64_t> kept_, counts_, members_, offsets_;
};

/// Rows of a cache in device memory, NaN where they are not written.
template <cuda::Storage T>
class CacheRows {
 public:
  CacheRows(int64_t slices, int64_t rows, int64_t cols)
      : slices_(slices), rows_(rows), cols_(cols), memory_(cuda::upload(nothing())) {}
  /// numbers  exact in T: rounded<T>(...)
  /// used     how many rows of each slice are in use
  CacheRows(TensorView numbers, const Positions& used)
      : slices_(numbers.slices), rows_(numbers.rows), cols_(numbers.cols) {
    std::vector<T> all = nothing();
    for (int64_t s = 0; s < slices_; ++s) {
      for (int64_t i = 0; i < used[s]; ++i) {
        std::ranges::transform(numbers.slice(s).row(i), all.begin() + (s * rows_ + i) * stride(),
                               [](double entry) { return stored<T>(entry); });
      }
    }
    memory_ = cuda::upload(all);
  }

  cuda::DeviceTensor<T> view() { return {memory_.data(), slices_, rows_, cols_, stride(), rows_ * stride()}; }
  /// The numbers [slices, rows, cols]. Fails the test if the gap behind a row was overwritten.
  std::vector<float> numbers() const {
    const std::vector<T> all = cuda::download(memory_);
    std::vector<float> numbers;
    for (int64_t row = 0; row < slices_ * rows_; ++row) {
      for (int64_t c = 0; c < stride(); ++c) {
        const auto own = static_cast<float>(number(all[row * stride() + c]));
        if (c < cols_) numbers.push_back(own);
        EXPECT_TRUE(c < cols_ || own != own) << "row " << row << " was written behind its last column";
      }
    }
    return numbers;
  }

 private:
  int64_t stride() const { return cuda::padded<T>(cols_) + cuda::kVector<T>; }
  std::vector<T> nothing() const {
    return std::vector<T>(slices_ * rows_ * stride(), stored<T>(std::numeric_limits<double>::quiet_NaN()));
  }

  int64_t slices_, rows_, cols_;
  cuda::Buffer<T> memory_;
};

/// The longest chain of additions in a cluster's sum on the device, without the kept entry: up to 64
/// members; of more, 32 of a part of 128 at most, then the shares of its lanes, with which that makes 36
/// at most, then all parts.
inline int64_t accumulation_depth(int64_t members) {
  return members <= 64 ? members : 36 + (members + 127) / 128;
}

/// Adds the rounding to the storage type to bounds of computed numbers.
template <cuda::Storage T>
std::vector<double> with_storage(std::vector<double> errors, VectorView numbers) {
  const RealFormat format = *real_format(cuda::dtype_of<T>);
  for (size_t c = 0; c < errors.size(); ++c) {
    errors[c] +=
        format.unit_roundoff() * (std::abs(numbers[c]) + errors[c]) + format.smallest_subnormal() / 2;
  }
  return errors;
}

}  // namespace kvbound::parity
