// A new entry of a KV head as one warp copies it: what append_kernel and the evictions have in common.
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/paged_rows.hpp>

#include "append.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The key's and the value's vectors of 16 bytes, dealt to the lanes of a warp: with up to 128 numbers of 16
/// bits in a row a lane has one of them.
class EntryRows {
 public:
  /// The head's entry is read.
  __device__ EntryRows(const NewEntries& entries, int64_t head)
      : entries_(entries), head_(head), position_(entries.positions ? entries.positions[head] : 0) {
    each_vector([&](int i, const NewRows& rows, int64_t byte) {
      vectors_[i] = *reinterpret_cast<const uint4*>(rows.from + head_ * rows.from_stride + byte);
    });
  }

  /// Writes it to a slot, and what the slot holds then; there may be no room for it. The warp calls it when
  /// all threads have read the head's numbers.
  ///
  /// entries   slots of the head that are in use; the slot is one of them or the next one
  /// key_norm  the key's length, in lane 0; null: not kept
  __device__ void put(const CacheSlots& slots, int64_t slot, int64_t entries, float* key_norms = nullptr,
                      float key_norm = 0) const {
    const bool fits = slot < slots.capacity;
    if (fits) {
      const RowPlace place = place_of(slots.pages, head_, slot);
      each_vector([&](int i, const NewRows& rows, int64_t byte) {
        *reinterpret_cast<uint4*>(rows.to + place.slice * rows.slice_stride + place.row * rows.row_stride +
                                  byte) = vectors_[i];
      });
    }
    if (lane() > 0) return;
    slots.newest[head_] = fits ? slot : -1;
    if (!fits) return;
    const int64_t place = head_ * slots.capacity + slot;
    if (key_norms) key_norms[place] = key_norm;
    if (slots.positions) slots.positions[place] = position_;
    if (slots.votes) slots.votes[place] = 1;
    if (slots.log_votes) slots.log_votes[place] = 0;
    slots.free[head_] = -1;
    if (slot == entries) slots.entries[head_] = entries + 1;
  }

 private:
  static constexpr int kVectors = 2 * kMostHeadDim * static_cast<int>(sizeof(float)) / (32 * 16);

  template <class Work>
  __device__ void each_vector(const Work& work) const {
    const auto of_row = static_cast<int>(entries_.row_bytes / 16);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int vector = lane() + i * 32;
      if (vector >= 2 * of_row) break;
      const bool is_key = vector < of_row;
      work(i, is_key ? entries_.keys : entries_.values, int64_t{is_key ? vector : vector - of_row} * 16);
    }
  }

  const NewEntries& entries_;
  int64_t head_, position_;
  uint4 vectors_[kVectors];
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
