#include "allocation.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/team.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "radix_selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using kvbound::detail::Wide;
using radix_selection::kThreads;
using radix_selection::Least;

constexpr int64_t kMostHeads = 4096;
// With so many columns, the blocks of a cluster would wait for each other more than work.
constexpr int64_t kColsOfOneBlock = 1024;

struct Arguments {
  Wide safeguard, unit;  // the safeguard is safeguard / unit
  const float* scores;
  int64_t kv_heads, cols, row_stride;
  const int64_t* candidates;
  int64_t* budgets;
  int* status;
};

struct Shared : radix_selection::SearchShared {
  // [kv_heads], which other blocks also read, in place of the counters, which are not needed behind the
  // search: a head's scores above the smallest one that counts, and those that equal it, in this block.
  int* above;
  int* same;
  int64_t* found;  // [kv_heads]: scores of the head among the largest of all
  int64_t* whole;  // [kv_heads]: its budget, rounded down
  Wide* fraction;  // [kv_heads]: what was cut off, in units of 1 / unit

  __host__ __device__ Shared(SharedMemory& memory, int64_t kv_heads, int blocks)
      : SearchShared(memory, blocks),
        above(counters),
        same(counters + kMostHeads),
        found(memory.array<int64_t>(kv_heads)),
        whole(memory.array<int64_t>(kv_heads)),
        fraction(memory.array<Wide>(kv_heads)) {
    static_assert(2 * kMostHeads <= radix_selection::kCounters);
  }
};

// Calls work(exists, key) for the block's scores of one head, by whole warps: an equal share of its columns.
template <int kBlocks, class Work>
__device__ void each_key(const Arguments& p, int64_t head, const Work& work) {
  const int64_t share = round_up(ceil_division(p.cols, kBlocks), 32);
  const int64_t begin = Team<kBlocks>::rank() * share, end = min(begin + share, p.cols);
  const float* const scores = p.scores + head * p.row_stride;
#pragma unroll 4
  for (int64_t first = begin + warp() * 32; first < end; first += kThreads) {
    const int64_t j = first + lane();
    work(j < end, j < end ? radix_selection::ordered_key(scores[j]) : 0);
  }
}

// Counts each head's scores above the smallest one that counts, and those that equal it. All threads call it.
template <int kBlocks>
__device__ void count_by_head(const Arguments& p, uint32_t least, const Shared& shared) {
  for (int64_t head = threadIdx.x; head < p.kv_heads; head += kThreads)
    shared.above[head] = shared.same[head] = 0;
  __syncthreads();
  bool nan = false;
  for (int64_t head = 0; head < p.kv_heads; ++head) {
    int above = 0, same = 0;
    each_key<kBlocks>(p, head, [&](bool exists, uint32_t key) {
      above += exists && key > least;
      same += exists && key == least;
      nan |= exists && key == radix_selection::kNanKey;
    });
    above = warp_sum(above);
    same = warp_sum(same);
    if (lane() > 0) continue;
    atomicAdd(&shared.above[head], above);
    atomicAdd(&shared.same[head], same);
  }
  if (nan) *p.status = 1;  // several threads may write, all of them 1
}

// The sum of the blocks' numbers.
template <int kBlocks>
__device__ int of_all_blocks(int* here) {
  if constexpr (kBlocks == 1) {
    return *here;
  } else {
    int sum = 0;
    for (int rank = 0; rank < kBlocks; ++rank) sum += *map_shared(here, rank);
    return sum;
  }
}

// How many of a head's scores are among the largest of all; of equal ones those of smaller heads count first.
template <int kBlocks>
__device__ int64_t found_of(int64_t head, const Least<uint32_t>& least, const Shared& shared) {
  int rest = least.wanted;
  for (int64_t other = 0; least.wanted > 0 && other < head; ++other) {
    rest -= of_all_blocks<kBlocks>(&shared.same[other]);
  }
  const int same = of_all_blocks<kBlocks>(&shared.same[head]);
  const int counting = least.wanted > 0 ? max(0, min(same, rest)) : same;
  return of_all_blocks<kBlocks>(&shared.above[head]) + counting;
}

// f + s (k - f), rounded down, and what is cut off.
__device__ void share_out(const Arguments& p, int64_t head, const Shared& shared) {
  const int64_t found = shared.found[head];
  const Wide moved = p.safeguard * (p.candidates[head] - found);
  Wide quotient = moved / p.unit, rest = moved % p.unit;
  if (rest < 0) {
    rest += p.unit;
    --quotient;
  }
  shared.whole[head] = found + static_cast<int64_t>(quotient);
  shared.fraction[head] = rest;
}

// One more for each of the largest fractions; ties: the smaller head.
__device__ int64_t filled_up(const Arguments& p, int64_t head, int64_t total, const Shared& shared) {
  int64_t rest = total, larger = 0;
  for (int64_t other = 0; other < p.kv_heads; ++other) {
    rest -= shared.whole[other];
    larger += shared.fraction[other] > shared.fraction[head] ||
              (shared.fraction[other] == shared.fraction[head] && other < head);
  }
  return shared.whole[head] + (larger < rest ? 1 : 0);
}

// The budgets of all KV heads of a layer: radix selection over all their scores, by one block, or by a
// cluster of eight, each of which has some columns of every head.
//
// grid       kBlocks
// block      1024
// shared     32,912 bytes, of kBlocks 8 49,312, and 32 for each KV head
// registers  55, of kBlocks 8 64 (sm_90a); 52 (sm_80, where kBlocks 8 has no code)
// bytes      read: 4 kv_heads cols, up to 5 times, mostly from the L2 cache, 8 kv_heads; written: 8 kv_heads
// no FLOP
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) adakv_budgets_kernel(Arguments p) {
  SharedMemory memory;
  const Shared shared(memory, p.kv_heads, kBlocks);
  radix_selection::Exchange<kBlocks> exchange(shared);
  Team<kBlocks>::sync();  // all blocks can be sent to
  int64_t total = 0;
  for (int64_t head = 0; head < p.kv_heads; ++head) total += p.candidates[head];
  const auto each = [&](const auto& add) {
    for (int64_t head = 0; head < p.kv_heads; ++head) each_key<kBlocks>(p, head, add);
  };
  Least<uint32_t> least{radix_selection::kFirstKey, 0};  // which no score has
  radix_selection::clear(shared.counters);
  __syncthreads();
  if (total > 0)
    least = radix_selection::least_of_blocks<kBlocks, uint32_t>(each, total, shared, exchange, 32);
  count_by_head<kBlocks>(p, least.number, shared);
  Team<kBlocks>::sync();
  for (int64_t head = threadIdx.x; head < p.kv_heads; head += kThreads) {
    shared.found[head] = found_of<kBlocks>(head, least, shared);
    share_out(p, head, shared);
  }
  // All heads' shares are known, and no block returns while others read its shared memory.
  Team<kBlocks>::sync();
  if (Team<kBlocks>::rank() > 0) return;
  for (int64_t head = threadIdx.x; head < p.kv_heads; head += kThreads) {
    p.budgets[head] = filled_up(p, head, total, shared);
  }
}

}  // namespace

void adakv_budgets(const AdaKv& options, const float* scores, int64_t kv_heads, int64_t cols,
                   int64_t row_stride, const int64_t* candidates, int64_t* budgets, int* status,
                   Stream stream) {
  require_range("KV heads", kv_heads, 1, kMostHeads);
  require_range("columns of the scores", cols, 0, kMostLayerScores / kv_heads);
  require_range("row_stride of the scores", row_stride, cols, INT64_MAX);
  const Arguments arguments{options.safeguard.digits,
                            kvbound::detail::power_of_ten(options.safeguard.places),
                            scores,
                            kv_heads,
                            cols,
                            row_stride,
                            candidates,
                            budgets,
                            status};
  launch_by_length(cols, kColsOfOneBlock, [&]<int kBlocks> {
    launch<adakv_budgets_kernel<kBlocks>>(
        teams<kBlocks>(1, kThreads, shared_bytes<Shared>(kv_heads, kBlocks), stream), arguments);
  });
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
