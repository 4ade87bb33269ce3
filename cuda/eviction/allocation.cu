#include "allocation.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "radix_selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using kvbound::detail::Wide;
using radix_selection::kThreads;

// Ranks order the scores of all heads: by key, then by head and index, reversed.
constexpr int kPlaceBits = 30;
static_assert(kMostLayerScores == int64_t{1} << kPlaceBits);

struct Arguments {
  Wide safeguard, unit;  // the safeguard is safeguard / unit
  const float* scores;
  int64_t kv_heads, cols, row_stride;
  const int64_t* candidates;
  int64_t* budgets;
  int* status;

  __device__ uint32_t key(int64_t head, int64_t j) const {
    return radix_selection::ordered_key(scores[head * row_stride + j]);
  }
  __device__ uint64_t rank(int64_t head, int64_t j) const {
    const int64_t place = head * cols + j;
    return static_cast<uint64_t>(key(head, j)) << kPlaceBits |
           static_cast<uint64_t>(kMostLayerScores - 1 - place);
  }
};

struct Shared {
  radix_selection::Shared selection;
  int64_t* found;  // [kv_heads]: scores of the head among the largest of all
  int64_t* whole;  // [kv_heads]: its budget, rounded down
  Wide* fraction;  // [kv_heads]: what was cut off, in units of 1 / unit

  __host__ __device__ Shared(SharedMemory& memory, int64_t kv_heads)
      : selection(memory, 0),
        found(memory.array<int64_t>(kv_heads)),
        whole(memory.array<int64_t>(kv_heads)),
        fraction(memory.array<Wide>(kv_heads)) {}
};

// Counts each head's scores of at least this rank. All threads call it.
__device__ void count_by_head(const Arguments& p, uint64_t least, const Shared& shared) {
  for (int64_t head = 0; head < p.kv_heads; ++head) {
    int count = 0;
    bool nan = false;
    for (int64_t j = threadIdx.x; j < p.cols; j += kThreads) {
      count += p.rank(head, j) >= least;
      nan |= p.key(head, j) == radix_selection::kNanKey;
    }
    if (nan) *p.status = 1;  // several threads may write, all of them 1
    count = warp_sum(count);
    __syncthreads();  // no thread reads the previous head's totals any more
    if (lane() == 0) shared.selection.warp_totals[warp()] = count;
    __syncthreads();
    if (warp() > 0) continue;
    const int total = warp_sum(shared.selection.warp_totals[lane()]);
    if (lane() == 0) shared.found[head] = total;
  }
  __syncthreads();
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

// The budgets of all KV heads of a layer: radix selection over all their scores, by one block.
//
// grid       1
// block      1024
// shared     32,912 bytes and 32 for each KV head
// registers  52 (sm_90a), 52 (sm_80)
// bytes      read: 4 kv_heads cols, up to 7 times, mostly from the L2 cache, 8 kv_heads; written: 8 kv_heads
// no FLOP
__global__ void __launch_bounds__(kThreads, 1) adakv_budgets_kernel(Arguments p) {
  SharedMemory memory;
  const Shared shared(memory, p.kv_heads);
  int64_t total = 0;
  for (int64_t head = 0; head < p.kv_heads; ++head) total += p.candidates[head];
  const auto rank_at = [&](int64_t place) { return p.rank(place / p.cols, place % p.cols); };
  const uint64_t least =
      radix_selection::least_rank(rank_at, p.kv_heads * p.cols, total, shared.selection, 32 + kPlaceBits);
  count_by_head(p, least, shared);
  for (int64_t head = threadIdx.x; head < p.kv_heads; head += kThreads) share_out(p, head, shared);
  __syncthreads();
  for (int64_t head = threadIdx.x; head < p.kv_heads; head += kThreads) {
    p.budgets[head] = filled_up(p, head, total, shared);
  }
}

}  // namespace

void adakv_budgets(const AdaKv& options, const float* scores, int64_t kv_heads, int64_t cols,
                   int64_t row_stride, const int64_t* candidates, int64_t* budgets, int* status,
                   Stream stream) {
  require_range("KV heads", kv_heads, 1, 4096);
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
  launch<adakv_budgets_kernel>({extent(1), extent(kThreads), shared_bytes<Shared>(kv_heads), stream},
                               arguments);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
