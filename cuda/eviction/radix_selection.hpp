// Selection by one thread block, or by a cluster of them: the steps of select_top,
// rank_top and select_critical.
//
// Every entry has a rank, a number of 60 bits: the key of its score in front, its index, reversed, behind.
// Ranks are distinct and ordered as the reference orders entries, ties included, so that an entry is selected
// if its rank is at least the k-th largest rank. That rank is found by its digits of 8 bits, most significant
// first, one pass over the keys for each, until the entries with the digits found are all selected:
//
//       rank     | key: 32 bits                      | reversed index: 28 bits           |
//       digits   | 0: 8   | 1: 8   | 2: 8   | 3: 8   | 4: 8   | 5: 8   | 6: 8   | 7: 4   |
#pragma once

#include <kvbound/cuda/primitives/cluster.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/remote_store.hpp>

#include "selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace radix_selection {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;

inline constexpr int kIndexBits = 28;
static_assert(kMostScores <= kMostPositions && kMostPositions == int64_t{1} << kIndexBits);

inline constexpr int kDigitBits = 8;
inline constexpr int kBins = 1 << kDigitBits;
// Every lane counts in a bank of its own, whatever bins the scores crowd into.
inline constexpr int kCounters = kBins * 32;

/// Keys that no score has: NaN's, below all scores, and that of entries selected before, above all scores.
inline constexpr uint32_t kNanKey = 0;
inline constexpr uint32_t kFirstKey = 0xffffffffu;

/// Orders as scores do: a larger score has a larger key, -0 and +0 have the same.
__device__ inline uint32_t ordered_key(float score) {
  if (score != score) return kNanKey;
  const uint32_t bits = score == 0 ? 0 : __float_as_uint(score);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// Of equal keys the smaller index ranks higher.
__device__ inline uint32_t reversed(int64_t index) {
  return static_cast<uint32_t>(kMostPositions - 1 - index);
}
__device__ inline uint64_t lowest_rank(uint32_t key) { return static_cast<uint64_t>(key) << kIndexBits; }
__device__ inline uint64_t rank_of(uint32_t key, int64_t index) { return lowest_rank(key) | reversed(index); }
__device__ inline int64_t index_of(uint64_t rank) {
  return reversed(static_cast<int64_t>(rank % kMostPositions));
}

/// The result of a pass over one digit of the ranks.
struct Found {
  uint32_t digit;  ///< of the k-th largest rank
  int above;       ///< ranks with a larger digit
  int same;        ///< ranks with this digit
};

/// The search for the k-th largest number, by its digits from the most significant one on.
template <class Number>
struct DigitSearch {
  Number prefix = 0;  ///< the digits found
  int wanted;         ///< which one of the numbers with these digits it is, counted from the largest
  int below;          ///< bits not found yet

  __device__ DigitSearch(int64_t k, int number_bits) : wanted(static_cast<int>(k)), below(number_bits) {}

  __device__ int bits() const { return min(below, kDigitBits); }
  /// Counts the number's next digit if the number begins with the digits found.
  ///
  /// counters  from the lane's own ones on
  __device__ void count(bool exists, Number number, int* counters) const {
    const Number upper = number >> (below - bits());
    const auto digit = static_cast<uint32_t>(upper) & ((1u << bits()) - 1);
    if (exists && upper >> bits() == prefix) atomicAdd(counters + digit * 32, 1);
  }
  /// Appends a digit. Returns whether all numbers with these digits are selected,
  /// whatever their other digits.
  __device__ bool take(const Found& found) {
    const int found_bits = bits();
    below -= found_bits;
    prefix = prefix << found_bits | found.digit;
    wanted -= found.above;
    return found.same == wanted;
  }
  __device__ Number least() const { return prefix << below; }
};

/// Shared memory of an Exchange.
struct ExchangeShared {
  int* bins;          ///< [2, blocks, kBins]: what each block of a cluster has counted, in turns
  uint64_t* arrived;  ///< [2]: all of these have arrived

  /// blocks  of a cluster that count together; of one alone there are no bins
  __host__ __device__ ExchangeShared(SharedMemory& memory, int blocks)
      : bins(memory.array<int>(blocks > 1 ? 2 * blocks * kBins : 0)),
        arrived(memory.array<uint64_t>(blocks > 1 ? 2 : 0)) {}
};

/// Shared memory of a search.
struct SearchShared : ExchangeShared {
  int* counters;     ///< [kBins, 32]
  int* warp_totals;  ///< [kWarps]
  Found* found;

  __host__ __device__ SearchShared(SharedMemory& memory, int blocks)
      : ExchangeShared(memory, blocks),
        counters(memory.array<int>(kCounters)),
        warp_totals(memory.array<int>(kWarps)),
        found(memory.array<Found>(1)) {}
};

/// Shared memory of a selecting block.
struct Shared : SearchShared {
  uint32_t* keys;  ///< [cols] if they fit, else none

  __host__ __device__ Shared(SharedMemory& memory, int64_t cols_here)
      : SearchShared(memory, 1), keys(memory.array<uint32_t>(cols_here)) {}
};

__device__ inline unsigned lanes_below() { return (1u << lane()) - 1; }

/// The sum of the totals of the warps before this one.
__device__ inline int sum_before(const int* warp_totals) {
  return warp_sum(lane() < warp() ? warp_totals[lane()] : 0);
}

/// The inclusive prefix sum over the warp's lanes, the total of which the last one leaves to sum_before.
__device__ inline int prefix_sum_of_warp(int number, int* warp_totals) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, number, static_cast<unsigned>(distance));
    if (lane() >= distance) number += other;
  }
  if (lane() == 31) warp_totals[warp()] = number;
  return number;
}

__device__ inline void clear(int* counters) {
  int4* const fours = reinterpret_cast<int4*>(counters);
  for (unsigned i = threadIdx.x; i < kCounters / 4; i += blockDim.x) fours[i] = {};
}

/// The first kBins threads have a bin each, the highest one first.
__device__ inline bool has_bin() { return threadIdx.x < kBins; }
__device__ inline int own_bin() { return kBins - 1 - static_cast<int>(threadIdx.x); }

/// How many ranks the block has counted in the thread's bin, whose counters it clears for the next digit.
/// Each of eight threads reads another four counters, so that they read from all banks.
__device__ inline int take_own_bin(int* counters) {
  int4* const fours = reinterpret_cast<int4*>(counters) + own_bin() * 8;
  const int turn = own_bin() & 7;
  int sum = 0;
#pragma unroll 1
  for (int half = 0; half < 8; half += 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int4 four = fours[half ^ i ^ turn];
      sum += four.x + four.y + four.z + four.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) fours[half ^ i ^ turn] = {};
  }
  return sum;
}

/// How many items are in a bin, and how many of them in blocks before this one.
struct BinSize {
  int all, before;
};

/// How the kBlocks of a cluster that search or sort together tell each other what they have counted: each
/// sends the sizes of its bins to all of them, and waits for those of all. The first kBins threads have a bin
/// each.
///
/// There are two sets of bins, in turns. A block fills another one's set again when the other has sent the
/// sizes of the set between, which it does when all of its threads have read this one.
template <int kBlocks>
class Exchange {
 public:
  /// A barrier of the cluster has to follow before the first search, by all threads.
  __device__ explicit Exchange(const ExchangeShared& shared) : shared_(shared) {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x > 0) return;
      mbarrier_init(shared.arrived, 1);
      mbarrier_init(shared.arrived + 1, 1);
      mbarrier_fence_init();
    }
  }

  /// The size of the thread's bin in all blocks. All threads call it.
  ///
  /// here  its size in this block
  __device__ BinSize size_of(int here) {
    if constexpr (kBlocks == 1) {
      return {here, 0};
    } else {
      const BinSize size = exchanged(here, shared_.bins + turn_ * kBlocks * kBins, shared_.arrived + turn_);
      phase_ ^= static_cast<unsigned>(turn_);
      turn_ ^= 1;
      return size;
    }
  }

 private:
  __device__ BinSize exchanged(int here, int* bins, uint64_t* arrived) const {
    constexpr int kBytes = kBlocks * kBins * static_cast<int>(sizeof(int));
    BinSize size{0, 0};
    if (threadIdx.x == 0) mbarrier_arrive_expect(arrived, kBytes);
    if (!has_bin()) return size;
    const int own_rank = cluster_rank();
#pragma unroll
    for (int rank = 0; rank < kBlocks; ++rank)
      store_async(bins + own_rank * kBins + threadIdx.x, rank, here, arrived);
    mbarrier_wait<Senders::cluster>(arrived, phase_);
#pragma unroll
    for (int rank = 0; rank < kBlocks; ++rank) {
      const int of_block = bins[rank * kBins + static_cast<int>(threadIdx.x)];
      size.all += of_block;
      size.before += rank < own_rank ? of_block : 0;
    }
    return size;
  }

  const ExchangeShared& shared_;
  int turn_ = 0;
  unsigned phase_ = 0;  // of the mbarrier whose turn it is
};

/// Finds the bin of the wanted-th largest counted rank. 1 <= wanted <= the number of counted
/// ranks. All threads call it.
///
/// size  of the thread's bin
__device__ inline void find_digit(int size, int wanted, int* warp_totals, Found* found) {
  int above = has_bin() ? prefix_sum_of_warp(size, warp_totals) - size : 0;
  __syncthreads();
  if (!has_bin()) return;
  above += sum_before(warp_totals);
  if (above < wanted && wanted <= above + size) *found = {static_cast<uint32_t>(own_bin()), above, size};
}

/// The rank of entries that are not ranked at all: they are never counted.
inline constexpr uint64_t kNoRank = ~uint64_t{0};

/// The smallest number that is selected.
template <class Number>
struct Least {
  Number number;
  int wanted;  ///< how many of the numbers that are equal to it are selected; 0: all
  /// Those selected in blocks before this one, summed over the block's threads; without the equal
  /// ones, unless they all are.
  int before = 0;
};

/// The smallest number that is selected: of those of the block, or of all kBlocks of the cluster, the k >= 1
/// largest are; so many there are at least. All threads call it; the counters are clear before it, and again
/// behind it, and between writing what `each` reads and the call there is a barrier.
///
/// each         each(add) calls add(exists, number) for the block's entries, by whole warps
/// exchange     goes on through all calls
/// number_bits  the most that a number has
template <int kBlocks, class Number, class Each>
__device__ Least<Number> least_of_blocks(const Each& each, int64_t k, const SearchShared& shared,
                                         Exchange<kBlocks>& exchange, int number_bits) {
  DigitSearch<Number> search(k, number_bits);
  int before = 0;
  while (search.below > 0) {
    each([&](bool exists, Number number) { search.count(exists, number, shared.counters + lane()); });
    __syncthreads();
    const BinSize size = exchange.size_of(has_bin() ? take_own_bin(shared.counters) : 0);
    find_digit(size.all, search.wanted, shared.warp_totals, shared.found);
    __syncthreads();
    const Found found = *shared.found;
    const bool all = search.take(found);
    if (own_bin() + (all ? 1 : 0) > static_cast<int>(found.digit)) before += size.before;
    if (all) return {search.least(), 0, before};
  }
  return {search.least(), search.wanted, before};
}

/// The same of distinct ranks: k >= 0 of them are at least as large as this one. It
/// clears the counters itself.
template <int kBlocks, class Each>
__device__ uint64_t least_rank_of_blocks(const Each& each, int64_t k, const SearchShared& shared,
                                         Exchange<kBlocks>& exchange, int rank_bits) {
  if (k == 0) return ~uint64_t{0};
  clear(shared.counters);
  __syncthreads();
  return least_of_blocks<kBlocks, uint64_t>(each, k, shared, exchange, rank_bits).number;
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
  Exchange<1> exchange(shared);
  return least_rank_of_blocks<1>(each, k, shared, exchange, rank_bits);
}

/// The same where keys are in memory, and ties go by index. 0 <= k <= cols.
__device__ inline uint64_t least_rank_of_keys(const uint32_t* keys, int64_t cols, int64_t k,
                                              const Shared& shared) {
  return least_rank([&](int64_t j) { return rank_of(keys[j], j); }, cols, k, shared);
}

/// Writes the indices j for which selected(j) is true, ascending, to a row of the result. All threads
/// call it, after a barrier.
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
