// The log-sum-exps that SnapKV's and H2O's scores divide by, by wgmma (window_items.hpp).
//
// Each consumer multiplies 64 of an item's queries by all tiles of 128 keys. Queries are the rows of the
// products, so that a thread has two of them, and every fourth pair of keys: their largest logits and sums
// stay in four registers, and lanes join only once, behind the last tile. A tile's memory is free when both
// consumers have multiplied it; while one takes exponentials, the tensor cores work for the other.
//
// For a Llama-3.1-8B's window of 32 queries a tile, 32 KB, takes 1,800 cycles of a multiprocessor's share of
// an H200's memory bandwidth, 1,024 of the tensor cores, as many of the units for exponentials, and 640 of
// those for single precision, all calculated: memory is the limit. Of a split's last tile, half of one where
// splits have 704 tokens, memory brings what there is, and the others work as for a whole one.
#include "running_sums.hpp"
#include "snap_kv_kernels.hpp"
#include "window_items.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace snap_kv_kernels {
namespace {

using namespace window_items;

constexpr int kTileKeys = 128;
constexpr int kStages = 4;
constexpr int kQuerySets = 2;
constexpr int kConsumerQueries = kQueries / kConsumers;
static_assert(kConsumerQueries == 64 && kTileKeys == 128, "the rows and columns of a product");

template <int kHeadDim>
using Shared = Tiles<kHeadDim, kTileKeys, kStages, kQuerySets>;

// The producer's work, by one thread: queries and keys of all items of the block.
template <int kHeadDim, Storage16 T>
__device__ void produce(const Work<T>& work, const Maps& maps, const Shared<kHeadDim>& shared) {
  if (threadIdx.x != 0) return;
  StageRing<kStages> stages;
  StageRing<kQuerySets> sets;
  for (auto n = static_cast<int>(blockIdx.x); n < work.items;
       n += static_cast<int>(gridDim.x), sets.advance()) {
    const Item item(work, n);
    mbarrier_wait(shared.taken + sets.stage, sets.phase ^ 1);
    shared.request_queries(item, maps.queries, sets.stage);
    for (int tile = 0; tile < shared.count(item); ++tile, stages.advance())
      shared.request_tile(item, tile, maps.keys, stages.stage, stages.phase);
  }
}

// One query of a thread, of which four lanes have keys each: the largest logit so far, and the sum of
// exponentials.
struct RowSum {
  QueryPart part;
  int place;  // query
  int limit;  // tokens of the split that the query attends to
  RunningSum sum;

  // half  rows l / 4, or l / 4 + 8, of the warp's 16
  template <Storage16 T>
  __device__ RowSum(const Window<T>& window, const Item& item, int consumer, int half) : part(), sum() {
    const int row = consumer * kConsumerQueries + warp() % kGroupWarps * 16 + lane() / 4 + half * 8;
    part = item.part(row / kPartRows);
    place = part.first + row % kPartRows;
    limit = static_cast<int>(min(window.visible(place) - item.first, int64_t{item.tokens}));
  }

  // Takes in the thread's logits of a tile, every other pair of `products`.
  //
  // half   of the rows, whose products these are
  // token  the tile's first one, of the split
  template <bool kMasks>
  __device__ void add(float (&products)[kWarpgroupSums], int half, float scale, int token) {
    constexpr int kPairs = kTileKeys / 8;
    float most = sum.largest;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
      float& logit = products[n / 2 * 4 + half * 2 + n % 2];
      logit *= scale;
      if (kMasks && token + n / 2 * 8 + lane() % 4 * 2 + n % 2 >= limit) logit = kNothing;
      most = fmaxf(most, logit);
    }
    float sums[kPairs];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const float* const logits = products + pair * 4 + half * 2;
      sums[pair] = power_of_two(logits[0] - most) + power_of_two(logits[1] - most);
    }
#pragma unroll
    for (int width = 1; width < kPairs; width *= 2) {
#pragma unroll
      for (int pair = 0; pair < kPairs; pair += 2 * width) sums[pair] += sums[pair + width];
    }
    sum.sum = sum.sum * power_of_two(sum.largest - most) + sums[0];
    sum.largest = most;
  }

  // Joins the four lanes, and writes the sum.
  template <Storage16 T>
  __device__ void write(const Window<T>& window, const Item& item, const SplitPartials& partials) {
    float most = sum.largest;
    for (int distance = 1; distance <= 2; distance *= 2)
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
    float all = sum.sum * power_of_two(sum.largest - most);
    for (int distance = 1; distance <= 2; distance *= 2) all += __shfl_xor_sync(kAllLanes, all, distance);
    if (lane() % 4 != 0 || !part.exists || place >= window.size()) return;
    partials.write(item.split, part.head * window.size() + place, RunningSum{most, all}.most(), all);
  }
};

// A consumer's work: its queries of all items of the block.
template <int kHeadDim, Storage16 T>
__device__ void consume(const Work<T>& work, const SplitPartials& partials, const Shared<kHeadDim>& shared,
                        int consumer) {
  StageRing<kStages> stages;
  StageRing<kQuerySets> sets;
  for (auto n = static_cast<int>(blockIdx.x); n < work.items;
       n += static_cast<int>(gridDim.x), sets.advance()) {
    const Item item(work, n);
    RowSum low(work.window, item, consumer, 0), high(work.window, item, consumer, 1);
    mbarrier_wait(shared.given + sets.stage, sets.phase);
    const uint16_t* const queries = shared.query_set(sets.stage) + consumer * kConsumerQueries * kBoxColumns;
#pragma unroll 1
    for (int tile = 0; tile < shared.count(item); ++tile, stages.advance()) {
      float products[kWarpgroupSums];
      mbarrier_wait(shared.full + stages.stage, stages.phase);
      multiply<kHeadDim, kQueries, kTileKeys, T>(products, queries, shared.tile(stages.stage));
      if (lane() == 0) mbarrier_arrive(shared.empty + stages.stage);
      const int token = tile * kTileKeys;
      if (token + kTileKeys <= item.seen) {
        low.template add<false>(products, 0, work.scale, token);
        high.template add<false>(products, 1, work.scale, token);
      } else {
        low.template add<true>(products, 0, work.scale, token);
        high.template add<true>(products, 1, work.scale, token);
      }
    }
    if (lane() == 0) mbarrier_arrive(shared.taken + sets.stage);
    low.write(work.window, item, partials);
    high.write(work.window, item, partials);
  }
}

// As window_log_sum_exp_mma_kernel.
//
//                                     a split of up to 704 tokens, 128 in a tile, 4 tiles in shared memory
//       queries, in shared memory     +-------------------------------+
//       consumer 0: 64            ->  |  products, 64 x 128, in       |  <-  keys, 128 of a tile, by TMA:
//                                     |  registers of each            |      head_dim, in steps of 16
//       consumer 1: 64            ->  |                               |
//                                     +-------------------------------+
//
// grid       one block for each multiprocessor, or for each of the kv_heads ceil(tokens / split_tokens)
//            ceil(group parts / 4) items if there are fewer; parts 1, 2 or 4 of a window of up to 32, 64, 128
// block      384: a producer's warpgroup and two consumers'
// shared     1,536 head_dim + 96 bytes: 98,400 or 196,704 for head_dim 64 and 128
// registers  168 (sm_90a), which setmaxnreg makes 40 in the producer and 232 in the consumers
// bytes      read: 2 head_dim for each token and item of its split, the later ones from the L2 cache; the
//            queries for each item; written: 8 for each query and split
// FLOP       256 head_dim for each token, of each item rounded up to 128, on tensor cores, an exponential
//            and 4 for each logit
template <int kHeadDim, Storage16 T>
__global__ void __launch_bounds__(kSpecialisedThreads, 1)
    window_log_sum_exp_wgmma_kernel(const __grid_constant__ Maps maps, Work<T> work, SplitPartials partials) {
  SharedMemory memory;
  const Shared<kHeadDim> shared(memory);
  shared.begin(kConsumerWarps, 1);
  specialise([&] { produce(work, maps, shared); },
             [&](int consumer) { consume(work, partials, shared, consumer); });
}

}  // namespace

int64_t sums_wgmma_shared_bytes() { return shared_bytes<Shared<128>>(); }

template <Storage16 T>
void launch_splits_wgmma(const Window<T>& window, const SplitPartials& partials, Stream stream) {
  const Work<T> work(window, Splits(window.tokens()).tokens);
  with_head_dim(work, [&](auto head_dim, dim3 blocks) {
    launch<window_log_sum_exp_wgmma_kernel<head_dim, T>>(
        {blocks, extent(kSpecialisedThreads), shared_bytes<Shared<head_dim>>(), stream}, Maps(window), work,
        partials);
  });
}
template void launch_splits_wgmma(const Window<Float16>&, const SplitPartials&, Stream);
template void launch_splits_wgmma(const Window<Bfloat16>&, const SplitPartials&, Stream);

}  // namespace snap_kv_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
