// A stable radix sort by one thread block: 8 bits of an item at a time, least significant first.
#pragma once

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace radix_sort {

using radix_selection::kCounters;
using radix_selection::kThreads;
using radix_selection::kWarps;
using radix_selection::lanes_below;
using radix_selection::Shared;

inline constexpr int kSortBits = 8;
inline constexpr int kSortBins = 1 << kSortBits;
static_assert(kSortBins * kWarps == kCounters, "sorting counts where selecting does");

/// Items are sorted by their upper 32 bits.
__device__ inline int sort_bin(uint64_t item, int pass) {
  return static_cast<int>(item >> (32 + pass * kSortBits) & (kSortBins - 1));
}

/// The part of `size` items that a warp counts and moves, in their order.
struct Segment {
  int64_t begin, end;
  __device__ explicit Segment(int64_t size) {
    const int64_t length = ceil_division(size, kThreads) * 32;
    begin = min(warp() * length, size);
    end = min(begin + length, size);
  }
};

/// A warp's counter of a bin. Different bins of a warp lie in different banks, and so do eight
/// bins of every eighth warp.
__device__ inline int& counter(const Shared& shared, int bin, int of_warp) {
  return shared.counters[of_warp * kSortBins + (bin ^ of_warp / 8 * 8)];
}

/// Replaces each counter by the number of items before its warp's first item in its bin. A thread has eight
/// warps' counters of a bin.
__device__ inline void sum_counters(const Shared& shared) {
  constexpr int kEach = kCounters / kThreads;
  static_assert(kEach == 8 && kWarps == 32, "counters of four neighbouring threads lie in different banks");
  const int first = static_cast<int>(threadIdx.x) * kEach, bin = first / kWarps;
  int total = 0;
  for (int i = 0; i < kEach; ++i) total += counter(shared, bin, first % kWarps + i);
  int before = radix_selection::prefix_sum(total, shared.warp_totals) - total;
  for (int i = 0; i < kEach; ++i) {
    int& own = counter(shared, bin, first % kWarps + i);
    const int size = own;
    own = before;
    before += size;
  }
  __syncthreads();
}

/// The lanes among `active` that have this lane's bin.
__device__ inline unsigned peers_of(int bin, unsigned active) {
  unsigned peers = active;
  for (int bit = 0; bit < kSortBits; ++bit) {
    const bool set = (bin >> bit & 1) != 0;
    const unsigned same = __ballot_sync(kAllLanes, set);
    peers &= set ? same : ~same;
  }
  return peers;
}

/// One pass over `size` items, by their bits 32 + 8 pass and above. All threads call
/// it; it ends with a barrier.
__device__ inline void sort_pass(const uint64_t* from, uint64_t* to, int64_t size, int pass,
                                 const Shared& shared) {
  radix_selection::clear(shared.counters);
  __syncthreads();
  const Segment segment(size);
  for (int64_t i = segment.begin + lane(); i < segment.end; i += 32) {
    atomicAdd(&counter(shared, sort_bin(from[i], pass), warp()), 1);
  }
  __syncthreads();
  sum_counters(shared);
  for (int64_t first = segment.begin; first < segment.end; first += 32) {
    const int64_t i = first + lane();
    const bool active = i < segment.end;
    const uint64_t item = active ? from[i] : 0;
    const int bin = sort_bin(item, pass);
    const unsigned peers = peers_of(bin, __ballot_sync(kAllLanes, active));
    int* next = &counter(shared, bin, warp());
    const int before = *next;
    __syncwarp();
    if (active) {
      to[before + __popc(peers & lanes_below())] = item;
      if ((peers & lanes_below()) == 0) *next = before + __popc(peers);
    }
    __syncwarp();
  }
  __syncthreads();
}

}  // namespace radix_sort
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
