// SnapKV's and H2O's scores by wgmma (window_items.hpp).
//
// The consumers take a tile of 64 keys each in turn and multiply it by all queries; as soon as that is done,
// the tile's memory is free for the next one, and while one consumer takes exponentials, the tensor cores
// work for the other. A consumer's warp has 16 tokens of a tile, as a warp of snap_kv_mma.cu has.
//
// For a Llama-3.1-8B's window of 32 queries a tile, 16 KB, takes 900 cycles of a multiprocessor's share of an
// H200's memory bandwidth, 512 of the tensor cores and 512 to 768 of the units for exponentials, all
// calculated: memory is the limit, for which up to six tiles are on their way.
#include "running_sums.hpp"
#include "snap_kv_kernels.hpp"
#include "window_items.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace snap_kv_kernels {
namespace {

using namespace window_items;

constexpr int kTileKeys = 64;
constexpr int kStages = 6;
constexpr int kQuerySets = 2;
static_assert(kQueries == kWarpgroup, "a thread of the producer has a query");

using Stages = OwnStages<kStages>;

template <int kHeadDim>
struct Shared {
  Tiles<kHeadDim, kTileKeys, kStages, kQuerySets> tiles;  // a stage is multiplied by one consumer
  float* offsets;  // [kQuerySets, kQueries]: of the queries (offset_of)

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : tiles(memory), offsets(memory.array<float>(kQuerySets * kQueries)) {}
};

// The producer's work: queries and keys of all items of the block. A thread has a query's offset.
template <int kHeadDim, Storage16 T>
__device__ void produce(const Work<T>& work, const Maps& maps, const float* log_sum_exp,
                        const Shared<kHeadDim>& shared) {
  const int own = static_cast<int>(threadIdx.x);
  Stages stages[kConsumers] = {{0}, {1}};
  StageRing<kQuerySets> sets;
  const auto request = [&](const Item& item, int tile, Stages& of) {
    shared.tiles.request_tile(item, tile, maps.keys, of.stage(), of.ring.phase);
    of.ring.advance();
  };
  for (auto n = static_cast<int>(blockIdx.x); n < work.items;
       n += static_cast<int>(gridDim.x), sets.advance()) {
    const Item item(work, n);
    mbarrier_wait(shared.tiles.taken + sets.stage, sets.phase ^ 1);
    const QueryPart part = item.part(own / kPartRows);
    shared.offsets[sets.stage * kQueries + own] =
        offset_of(work.window, part, part.first + own % kPartRows, log_sum_exp);
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(shared.tiles.given + sets.stage);
    if (own == 0) {
      shared.tiles.request_queries(item, maps.queries, sets.stage);
      for (int tile = 0; tile < shared.tiles.count(item); tile += kConsumers) {
        request(item, tile, stages[0]);
        if (tile + 1 < shared.tiles.count(item)) request(item, tile + 1, stages[1]);
      }
    }
    __syncwarp();
  }
}

// The mean or summed attention to each token.
template <Storage16 T>
struct WeightsOfTokens {
  const Work<T>& work;
  float share;
  float* weights;  // [query_heads, tokens]
  float offsets[kParts][ItemProducts::kOwn] = {};

  __device__ void begin(const float* of_queries) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int i = 0; i < ItemProducts::kOwn; ++i)
        offsets[p][i] = of_queries[p * kPartRows + QueryPart::column(i)];
    }
  }

  // token  the first of the warp's tokens, of the split
  __device__ void take(const Item& item, const float (&sums)[kWarpgroupSums], int token) const {
    write_sums(work, item, token, share, weights, [&](int p) {
      ItemProducts exponents = part_of(sums, p);
#pragma unroll
      for (int i = 0; i < ItemProducts::kOwn; ++i) {
        exponents.of(0, i) = fmaf(exponents.of(0, i), work.scale, offsets[p][i]);
        exponents.of(1, i) = fmaf(exponents.of(1, i), work.scale, offsets[p][i]);
      }
      if (token + kRowsAtOnce > item.seen)
        exponents.mask({work.window, item.part(p), item.first, item.tokens}, token);
      return sum_of_weights(exponents);
    });
  }
};

// A consumer's work: every other tile of all items of the block.
template <int kHeadDim, Storage16 T>
__device__ void consume(const Shared<kHeadDim>& shared, int consumer, WeightsOfTokens<T>& weights) {
  const auto& tiles = shared.tiles;
  Stages stages{consumer};
  StageRing<kQuerySets> sets;
  for (auto n = static_cast<int>(blockIdx.x); n < weights.work.items;
       n += static_cast<int>(gridDim.x), sets.advance()) {
    const Item item(weights.work, n);
    mbarrier_wait(tiles.given + sets.stage, sets.phase);
    weights.begin(shared.offsets + sets.stage * kQueries);
#pragma unroll 1
    for (int tile = consumer; tile < shared.tiles.count(item); tile += kConsumers) {
      const int stage = stages.stage();
      float sums[kWarpgroupSums];
      mbarrier_wait(tiles.full + stage, stages.ring.phase);
      multiply<kHeadDim, kTileKeys, kQueries, T>(sums, tiles.tile(stage), tiles.query_set(sets.stage));
      if (lane() == 0) mbarrier_arrive(tiles.empty + stage);
      stages.ring.advance();
      weights.take(item, sums, tile * kTileKeys + warp() % kGroupWarps * kRowsAtOnce);
    }
    __syncwarp();  // all lanes have read their offsets
    if (lane() == 0) mbarrier_arrive(tiles.taken + sets.stage);
  }
}

// As window_attention_mma_kernel.
//
//                                        a split of up to 704 tokens, 64 in a tile, 6 tiles in shared memory
//                                        +-------------------------------+
//       producer: TMA               ->   |  keys, 64 of a tile           |  head_dim, in steps of 16
//                                        +-------------------------------+
//       queries, in shared memory        |                               |
//       4 parts of 32:              ->   |  products, 64 x 128, in       |  consumer 0: tiles 0, 2, ...
//       of 4, 2 or 1 heads               |  registers                    |  consumer 1: tiles 1, 3, ...
//                                        +-------------------------------+
//
// grid       one block for each multiprocessor, or for each of the kv_heads ceil(tokens / split_tokens)
//            ceil(group parts / 4) items if there are fewer; parts 1, 2 or 4 of a window of up to 32, 64, 128
// block      384: a producer's warpgroup and two consumers'
// shared     1,280 head_dim + 1,152 bytes: 83,072 or 164,992 for head_dim 64 and 128
// registers  168 (sm_90a), which setmaxnreg makes 40 in the producer and 232 in the consumers
// bytes      read: 2 head_dim for each token and item of its split, the later ones from the L2 cache; the
//            queries and their log-sum-exp for each item; written: 4 query_heads tokens
// FLOP       256 head_dim for each token and item of its split on tensor cores, an exponential and 3 for each
//            logit
template <int kHeadDim, Storage16 T>
__global__ void __launch_bounds__(kSpecialisedThreads, 1)
    window_attention_wgmma_kernel(const __grid_constant__ Maps maps, Work<T> work, const float* log_sum_exp,
                                  float share, float* weights) {
  SharedMemory memory;
  const Shared<kHeadDim> shared(memory);
  shared.tiles.begin(kGroupWarps, kGroupWarps + 1);
  specialise([&] { produce(work, maps, log_sum_exp, shared); },
             [&](int consumer) {
               WeightsOfTokens<T> of_tokens{work, share, weights};
               consume(shared, consumer, of_tokens);
             });
}

}  // namespace

template <Storage16 T>
bool wgmma_can(const Window<T>& window) {
  const DeviceInfo& info = device();
  const int64_t head_dim = window.keys.cols;
  return info.has_wgmma && (head_dim == 64 || head_dim == 128) && window.size() <= kQueries &&
         has_row_boxes(window.queries) && has_row_boxes(window.keys) &&
         shared_bytes<Shared<128>>() <= info.shared_memory_per_block &&
         sums_wgmma_shared_bytes() <= info.shared_memory_per_block;
}
template bool wgmma_can(const Window<Float16>&);
template bool wgmma_can(const Window<Bfloat16>&);

template <Storage16 T>
void launch_attention_wgmma(const Window<T>& window, const float* log_sum_exp, WindowReduction reduction,
                            float* weights, Stream stream) {
  const float share = 1 / divisor_of(reduction, window.size());
  const Work<T> work(window, Splits(window.tokens()).tokens);
  with_head_dim(work, [&](auto head_dim, dim3 blocks) {
    launch<window_attention_wgmma_kernel<head_dim, T>>(
        {blocks, extent(kSpecialisedThreads), shared_bytes<Shared<head_dim>>(), stream}, Maps(window), work,
        log_sum_exp, share, weights);
  });
}
template void launch_attention_wgmma(const Window<Float16>&, const float*, WindowReduction, float*, Stream);
template void launch_attention_wgmma(const Window<Bfloat16>&, const float*, WindowReduction, float*, Stream);

int64_t wgmma_tensor_chain(int64_t head_dim) {
  return head_dim == 64 || head_dim == 128 ? head_dim / kDepth : 1;
}

}  // namespace snap_kv_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
