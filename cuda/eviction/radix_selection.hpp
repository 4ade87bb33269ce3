// Selection by one thread block, or by a cluster of them: the steps of select_top, rank_top and select_critical.
//
// Every entry has a rank, a number of 49 bits: the key of its score in front, its index, reversed, behind. Ranks are
// distinct and ordered as the reference orders entries, ties included, so that an entry is selected if its rank is at
// least the k-th largest rank. That rank is found by its digits of 11 bits, most significant first, one pass over the
// keys for each:
//
//       rank     | key: 32 bits                          | reversed index: 17 bits |
//       digits   | 0: 11 bits  | 1: 11 bits  | 2: 11 bits  | 3: 11 bits | 4: 5 bits |
#pragma once

#include <kvbound/cuda/primitives/cluster.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>

#include "selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace radix_selection {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;

inline constexpr int kIndexBits = 17;
static_assert(kMostScores == int64_t{1} << kIndexBits);

inline constexpr int kDigitBits = 11;
inline constexpr int kBins = 1 << kDigitBits;
// Neighbouring lanes count in different copies of a bin: softmax scores crowd into few bins.
inline constexpr int kCopies = 4;
inline constexpr int kCounters = kBins * kCopies;
inline constexpr int kBinsPerThread = kBins / kThreads;

/// Keys that no score has: NaN's, below all scores, and that of entries selected before, above all scores.
inline constexpr uint32_t kNanKey = 0;
inline constexpr uint32_t kFirstKey = 0xffffffffu;

/// Orders as scores do: a larger score has a larger key, -0 and +0 have the same.
__device__ inline uint32_t ordered_key(float score) {
  if (score != score) return kNanKey;
  const uint32_t bits = score == 0 ? 0 : __float_as_uint(score);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline uint64_t rank_of(uint32_t key, int64_t index) {
  return static_cast<uint64_t>(key) << kIndexBits | static_cast<uint64_t>(kMostScores - 1 - index);
}

/// The result of a pass over one digit of the ranks.
struct Found {
  uint32_t digit;  ///< of the k-th largest rank
  int above;       ///< ranks with a larger digit
  int same;        ///< ranks with this digit
};

/// The search for the k-th largest rank, by its digits from the most significant one on.
struct DigitSearch {
  uint64_t prefix = 0;  ///< the digits found
  int wanted;           ///< which one of the ranks with these digits it is, counted from the largest
  int below;            ///< bits not found yet

  __device__ DigitSearch(int64_t k, int rank_bits) : wanted(static_cast<int>(k)), below(rank_bits) {}

  __device__ int bits() const { return min(below, kDigitBits); }
  /// Whether the rank begins with the digits found, and its next digit.
  __device__ bool counts(uint64_t rank) const { return rank >> below == prefix; }
  __device__ uint32_t digit(uint64_t rank) const {
    return static_cast<uint32_t>(rank >> (below - bits())) & ((1u << bits()) - 1);
  }
  /// Appends a digit. Returns whether all ranks with these digits are selected, whatever their other digits.
  __device__ bool take(const Found& found) {
    const int found_bits = bits();
    below -= found_bits;
    prefix = prefix << found_bits | found.digit;
    wanted -= found.above;
    return found.same == wanted;
  }
  __device__ uint64_t least() const { return prefix << below; }
};

/// Shared memory of a search.
struct SearchShared {
  int* counters;     ///< [kBins, kCopies]
  int* warp_totals;  ///< [kWarps]
  Found* found;
  /// [2, kBins], which other blocks of a cluster read: this block's counts, in turns, so that one is read while the other is
  /// written
  int* bins;

  /// exchanges  whether the blocks of a cluster search together; if not there are no bins
  __host__ __device__ SearchShared(SharedMemory& memory, bool exchanges)
      : counters(memory.array<int>(kCounters)),
        warp_totals(memory.array<int>(kWarps)),
        found(memory.array<Found>(1)),
        bins(memory.array<int>(exchanges ? 2 * kBins : 0)) {}
};

/// Shared memory of a selecting block.
struct Shared : SearchShared {
  uint32_t* keys;  ///< [cols] if they fit, else none

  __host__ __device__ Shared(SharedMemory& memory, int64_t cols_here)
      : SearchShared(memory, false), keys(memory.array<uint32_t>(cols_here)) {}
};

__device__ inline unsigned lanes_below() { return (1u << lane()) - 1; }

/// The sum of the totals of the warps before this one.
__device__ inline int sum_before(const int* warp_totals) {
  return warp_sum(lane() < warp() ? warp_totals[lane()] : 0);
}

/// The inclusive prefix sum over the block's threads. All threads call it, and need a barrier before the next call.
__device__ inline int prefix_sum(int number, int* warp_totals) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, number, static_cast<unsigned>(distance));
    if (lane() >= distance) number += other;
  }
  if (lane() == 31) warp_totals[warp()] = number;
  __syncthreads();
  return number + sum_before(warp_totals);
}

/// Counts a digit for every lane with `counts`. Whole warps call it; one atomic operation counts lanes that all have
/// the same digit.
__device__ inline void count(int* counters, bool counts, uint32_t digit) {
  const unsigned counting = __ballot_sync(kAllLanes, counts);
  if (counting == 0) return;
  const uint32_t first = __shfl_sync(kAllLanes, digit, __ffs(static_cast<int>(counting)) - 1);
  const uint32_t bin = digit * kCopies + static_cast<uint32_t>(lane() % kCopies);
  if (__all_sync(kAllLanes, !counts || digit == first)) {
    if (lane() == 0) atomicAdd(&counters[first * kCopies], __popc(counting));
  } else if (counts) {
    atomicAdd(&counters[bin], 1);
  }
}

__device__ inline int in_bin(const int* counters, int bin) {
  static_assert(kCopies == 4, "a bin's copies are read at once");
  const int4 copies = reinterpret_cast<const int4*>(counters)[bin];
  return copies.x + copies.y + copies.z + copies.w;
}

/// The highest of a thread's bins, which are successive ones.
__device__ inline int highest_bin() { return kBins - 1 - static_cast<int>(threadIdx.x) * kBinsPerThread; }

/// Finds the bin of the wanted-th largest counted rank. 1 <= wanted <= the number of counted ranks.
///
/// sizes  of the thread's bins
__device__ inline void find_digit(const int (&sizes)[kBinsPerThread], int wanted, int* warp_totals,
                                  Found* found) {
  int mine = 0;
  for (int i = 0; i < kBinsPerThread; ++i) mine += sizes[i];
  int above = prefix_sum(mine, warp_totals) - mine;
  for (int i = 0; i < kBinsPerThread; ++i) {
    if (above < wanted && wanted <= above + sizes[i]) {
      *found = {static_cast<uint32_t>(highest_bin() - i), above, sizes[i]};
    }
    above += sizes[i];
  }
}

/// The rank of entries that are not ranked at all: they are never counted.
inline constexpr uint64_t kNoRank = ~uint64_t{0};

/// How many of the ranks that were counted are in each of the thread's bins: in this block, or in all kBlocks of the cluster,
/// each of which counted its own.
///
/// bins  [kBins] of this block's SearchShared::bins
template <int kBlocks>
__device__ void bin_sizes(const int* counters, int* bins, int (&sizes)[kBinsPerThread]) {
  static_assert(kBinsPerThread == 2, "two bins are read at once");
  if constexpr (kBlocks == 1) {
    for (int i = 0; i < kBinsPerThread; ++i) sizes[i] = in_bin(counters, highest_bin() - i);
  } else {
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads)
      bins[bin] = in_bin(counters, bin);
    cluster_sync();
    for (int rank = 0; rank < kBlocks; ++rank) {
      const int2 both = *reinterpret_cast<const int2*>(map_shared(bins, rank) + highest_bin() - 1);
      sizes[0] += both.y;
      sizes[1] += both.x;
    }
  }
}

/// The smallest rank that is selected: k entries have this rank or a larger one, of those of the block, or of all kBlocks of
/// the cluster; so many have one at least. All threads call it; between writing what `each` reads and the call there is a
/// barrier.
///
/// each       each(add) calls add(exists, rank) for the block's entries, by whole warps
/// turn       which of the two arrays of bins is next; it goes on through all calls
/// rank_bits  the most that a rank has, below 64
template <int kBlocks, class Each>
__device__ uint64_t least_rank_of_blocks(const Each& each, int64_t k, const SearchShared& shared, int& turn,
                                         int rank_bits) {
  if (k == 0) return ~uint64_t{0};
  DigitSearch search(k, rank_bits);
  while (search.below > 0) {
    for (int i = static_cast<int>(threadIdx.x); i < kCounters; i += kThreads) shared.counters[i] = 0;
    __syncthreads();
    each([&](bool exists, uint64_t rank) {
      count(shared.counters, exists && search.counts(rank), search.digit(rank));
    });
    __syncthreads();
    int sizes[kBinsPerThread] = {};
    bin_sizes<kBlocks>(shared.counters, shared.bins + turn * kBins, sizes);
    turn ^= 1;
    find_digit(sizes, search.wanted, shared.warp_totals, shared.found);
    __syncthreads();
    if (search.take(*shared.found)) break;
  }
  return search.least();
}

/// The same of a block alone, of the ranks rank_at(0 .. cols-1) that are not kNoRank.
template <class Rank>
__device__ uint64_t least_rank(const Rank& rank_at, int64_t cols, int64_t k, const SearchShared& shared,
                               int rank_bits = 32 + kIndexBits) {
  const auto each = [&](const auto& add) {
    for (int64_t first = warp() * 32; first < cols; first += kThreads) {
      const int64_t j = first + lane();
      const uint64_t rank = j < cols ? rank_at(j) : kNoRank;
      add(rank != kNoRank, rank);
    }
  };
  int turn = 0;
  return least_rank_of_blocks<1>(each, k, shared, turn, rank_bits);
}

/// The same where keys are in memory, and ties go by index. 0 <= k <= cols.
__device__ inline uint64_t least_rank_of_keys(const uint32_t* keys, int64_t cols, int64_t k,
                                              const Shared& shared) {
  return least_rank([&](int64_t j) { return rank_of(keys[j], j); }, cols, k, shared);
}

/// Writes the indices j for which selected(j) is true, ascending, to a row of the result. All threads call it, after a
/// barrier.
template <class Selected>
__device__ void write_ascending(int64_t cols, const Selected& selected, const SelectionResult& result,
                                int64_t row, int* warp_totals) {
  const int64_t segment = ceil_division(cols, kThreads) * 32;
  const int64_t begin = warp() * segment;
  const int64_t end = min(begin + segment, cols);
  int total = 0;
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t j = first + lane();
    total += __popc(__ballot_sync(kAllLanes, j < end && selected(j)));
  }
  if (lane() == 0) warp_totals[warp()] = total;
  __syncthreads();
  int64_t* next = result.indices + row * result.stride + sum_before(warp_totals);
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t j = first + lane();
    const bool writes = j < end && selected(j);
    const unsigned writing = __ballot_sync(kAllLanes, writes);
    if (writes) next[__popc(writing & lanes_below())] = result.first + j;
    next += __popc(writing);
  }
  __syncthreads();
}

/// Writes key(j) for every column and sets the status to 1 if a score is NaN.
template <class Key>
__device__ void write_keys(int64_t cols, const Key& key, uint32_t* keys, int* status) {
  bool nan = false;
  for (int64_t j = threadIdx.x; j < cols; j += kThreads) {
    keys[j] = key(j);
    nan |= keys[j] == kNanKey;
  }
  if (nan && status) *status = 1;  // several threads may write, all of them 1
}

/// Whether a row's keys fit into a block's shared memory; if not, they are in the workspace.
inline bool keys_fit(int64_t cols) { return shared_bytes<Shared>(cols) <= device().shared_memory_per_block; }

/// Bytes for the keys of all rows, a multiple of 256.
inline int64_t keys_bytes(int64_t rows, int64_t cols) {
  return round_up(rows * cols * static_cast<int64_t>(sizeof(uint32_t)), 256);
}

}  // namespace radix_selection
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
