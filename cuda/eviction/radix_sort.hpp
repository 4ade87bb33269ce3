// A stable radix sort by the blocks that share a row: 8 bits of an item at a time, least significant first.
//
//       items       | block 0: warp 0 | warp 1 | ... | block 1: warp 0 | ...
//       a pass:     each warp counts its items of every bin -> blocks tell each other the sizes of their bins
//                   -> where each warp's items of a bin go -> each warp moves its items, in their order
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/team.hpp>

#include "radix_selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace radix_sort {

using radix_selection::kBins;
using radix_selection::kDigitBits;
using radix_selection::kThreads;
using radix_selection::kWarps;

/// The order in which kBlocks blocks of kThreads put items.
template <int kBlocks>
class Sort {
 public:
  /// Of a block.
  struct Shared : radix_selection::ExchangeShared {
    int* counters;     ///< [kWarps, kBins]
    int* warp_totals;  ///< [kBins / 32]

    __host__ __device__ explicit Shared(SharedMemory& memory)
        : ExchangeShared(memory, kBlocks),
          counters(memory.array<int>(kWarps * kBins)),
          warp_totals(memory.array<int>(kBins / 32)) {}
  };

  __device__ explicit Sort(const Shared& shared) : shared_(shared), exchange_(shared) {}

  /// Sorts items by their upper 32 bits, of which the lowest 8 `passes` may be set. All threads of the team
  /// call it, once; it begins and ends with the team's barrier.
  ///
  /// items, others  [size], of which one holds the result
  /// returns        that one
  __device__ uint64_t* sort(uint64_t* items, uint64_t* others, int64_t size, int passes) {
    Team<kBlocks>::sync();
    for (int pass = 0; pass < passes; ++pass) {
      move(items, others, size, 32 + pass * kDigitBits);
      uint64_t* const sorted = others;
      others = items;
      items = sorted;
    }
    return items;
  }

 private:
  static __device__ int bin_of(uint64_t item, int shift) {
    return static_cast<int>(item >> shift & (kBins - 1));
  }

  // The lanes among `active` that have this lane's bin.
  static __device__ unsigned peers_of(int bin, unsigned active) {
    unsigned peers = active;
    for (int bit = 0; bit < kDigitBits; ++bit) {
      const bool set = (bin >> bit & 1) != 0;
      const unsigned same = __ballot_sync(kAllLanes, set);
      peers &= set ? same : ~same;
    }
    return peers;
  }

  // One pass, by the 8 bits from `shift` on.
  __device__ void move(const uint64_t* from, uint64_t* to, int64_t size, int shift) {
    for (int i = static_cast<int>(threadIdx.x); i < kWarps * kBins; i += kThreads) shared_.counters[i] = 0;
    __syncthreads();
    const int64_t length = ceil_division(size, kBlocks * kThreads) * 32;  // of a warp
    const int64_t begin = min((Team<kBlocks>::rank() * kWarps + warp()) * length, size);
    const int64_t end = min(begin + length, size);
    int* const counters = shared_.counters + warp() * kBins;
    for (int64_t i = begin + lane(); i < end; i += 32) atomicAdd(counters + bin_of(from[i], shift), 1);
    __syncthreads();
    count_items_before();
    for (int64_t first = begin; first < end; first += 32) {
      const int64_t i = first + lane();
      const bool active = i < end;
      const uint64_t item = active ? from[i] : 0;
      const int bin = bin_of(item, shift);
      const unsigned peers = peers_of(bin, __ballot_sync(kAllLanes, active));
      const int before = counters[bin];
      __syncwarp();
      if (active) {
        to[before + __popc(peers & radix_selection::lanes_below())] = item;
        if ((peers & radix_selection::lanes_below()) == 0) counters[bin] = before + __popc(peers);
      }
      __syncwarp();
    }
    Team<kBlocks>::sync();
  }

  // Replaces each counter by the number of items before its warp's first item in its bin: those of smaller
  // bins, and in this bin those of earlier blocks and warps. A thread has a bin.
  __device__ void count_items_before() {
    const bool has_bin = threadIdx.x < kBins;
    int* const of_bin = shared_.counters + threadIdx.x;
    int here = 0;
    for (int w = 0; has_bin && w < kWarps; ++w) here += of_bin[w * kBins];
    const radix_selection::BinSize size = exchange_.size_of(here);
    int before = has_bin ? radix_selection::prefix_sum_of_warp(size.all, shared_.warp_totals) - size.all : 0;
    __syncthreads();
    if (has_bin) before += radix_selection::sum_before(shared_.warp_totals) + size.before;
    for (int w = 0; has_bin && w < kWarps; ++w) {
      const int of_warp = of_bin[w * kBins];
      of_bin[w * kBins] = before;
      before += of_warp;
    }
    __syncthreads();
  }

  const Shared& shared_;
  radix_selection::Exchange<kBlocks> exchange_;
};

}  // namespace radix_sort
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
