// SnapKV's and H2O's scores by wgmma: 16-bit types, head_dim 64 and 128, windows of up to 128 queries,
// compute capability 9.0.
//
// A block is a producer and two consumers (primitives/warp_specialisation.hpp). The producer lets TMA copy
// the queries of a block's heads to shared memory, 128 in parts of 32 as snap_kv_mma.cu has them, and then
// the keys of a split of the tokens, 64 at a time. The consumers take a tile each in turn and multiply it by
// all queries; as soon as that is done, the tile's memory is free for the next one, and while one consumer
// takes exponentials, the tensor cores work for the other. A consumer's warp has 16 tokens of a tile, as a
// warp of snap_kv_mma.cu has.
//
// The blocks stay and take items one after the other: a split of the tokens of one KV head, with as many of
// its query heads as have room. How items are distributed does not change a bit of the results.
//
// For a Llama-3.1-8B's window of 32 queries a tile of 64 keys, 16 KB, takes 900 cycles of a multiprocessor's
// share of an H200's memory bandwidth, 512 of the tensor cores and 512 to 768 of the units for exponentials,
// all calculated: memory is the limit, for which up to six tiles are on their way.
#include <kvbound/cuda/primitives/row_boxes.hpp>
#include <kvbound/cuda/primitives/warp_specialisation.hpp>
#include <kvbound/cuda/primitives/warpgroup_mma.hpp>

#include "running_sums.hpp"
#include "snap_kv_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace snap_kv_kernels {
namespace {

using namespace window_tiles;

constexpr int kParts = 4;  // of a block's queries
constexpr int kPartRows = 32;
constexpr int kColumns = kParts * kPartRows;
constexpr int kTileKeys = 64;
constexpr int kStages = 6;
constexpr int kQuerySets = 2;  // an item's queries, and the next one's
constexpr int kDepth = 16;     // numbers of a row that an instruction takes
static_assert(kColumns == kWarpgroup, "a thread of the producer has a query, as one of a consumer has");

using Products = PartProducts<kPartRows / kFragmentRows>;

template <int kHeadDim>
inline constexpr int kStageSize = kHeadDim* kTileKeys;
template <int kHeadDim>
inline constexpr int kSetSize = kHeadDim* kColumns;

template <int kHeadDim>
struct Shared {
  uint16_t* stages;   // [kStages, kHeadDim / kBoxColumns, kTileKeys, kBoxColumns], permuted by the swizzle
  uint16_t* queries;  // [kQuerySets, kHeadDim / kBoxColumns, kColumns, kBoxColumns], permuted, too
  float* offsets;     // [kQuerySets, kColumns]: of the queries (offset_of)
  RunningSum* sums;   // [kConsumerWarps, kColumns]: of an item
  uint64_t* full;     // [kStages]: the keys have landed
  uint64_t* empty;    // [kStages]: all warps of the tile's consumer have multiplied it
  uint64_t* given;    // [kQuerySets]: the queries have landed, and their offsets are written
  uint64_t* taken;    // [kQuerySets]: all warps of the consumers have left them
  uint64_t* summed;   // all warps of the consumers have written their sums
  uint64_t* joined;   // all warps of the first consumer have read them

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : stages(memory.array<uint16_t>(kStages * kStageSize<kHeadDim>, 1024)),
        queries(memory.array<uint16_t>(kQuerySets * kSetSize<kHeadDim>, 1024)),
        offsets(memory.array<float>(kQuerySets * kColumns)),
        sums(memory.array<RunningSum>(kConsumerWarps * kColumns)),
        full(memory.array<uint64_t>(kStages)),
        empty(memory.array<uint64_t>(kStages)),
        given(memory.array<uint64_t>(kQuerySets)),
        taken(memory.array<uint64_t>(kQuerySets)),
        summed(memory.array<uint64_t>(1)),
        joined(memory.array<uint64_t>(1)) {}

  __device__ void begin() const {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(full + stage, 1);
        mbarrier_init(empty + stage, kGroupWarps);
      }
      for (int set = 0; set < kQuerySets; ++set) {
        mbarrier_init(given + set, kGroupWarps + 1);
        mbarrier_init(taken + set, kConsumerWarps);
      }
      mbarrier_init(summed, kConsumerWarps);
      mbarrier_init(joined, kGroupWarps);
      mbarrier_fence_init();
    }
    __syncthreads();
  }
};

struct Maps {
  TensorMap queries, keys;
};

// The stages of a consumer's tiles, every other one: it waits for every phase of their mbarriers, whichever
// tiles of an item it has.
struct OwnStages {
  int consumer;
  StageRing<kStages / kConsumers> ring = {};

  __device__ int stage() const { return ring.stage * kConsumers + consumer; }
};
static_assert(kConsumers == 2 && kStages % kConsumers == 0);

// What is divided into items, and how. A head has 1, 2 or 4 parts, 2^head_shift, for windows of up to 32, 64,
// 128 queries.
template <Storage16 T>
struct Work {
  Window<T> window;
  float scale;  // to base 2
  int split_tokens, splits;
  int head_shift, item_heads;
  int split_items;  // which have a split's query heads
  int items;

  explicit Work(const Window<T>& of)
      : window(of),
        scale(binary_scale(of)),
        split_tokens(static_cast<int>(Splits(of.tokens()).tokens)),
        splits(static_cast<int>(Splits(of.tokens()).count)),
        head_shift(static_cast<int>(of.size() > kPartRows) + static_cast<int>(of.size() > 2 * kPartRows)),
        item_heads(kParts >> head_shift),
        split_items(static_cast<int>(ceil_division(of.group_size(), item_heads))),
        items(static_cast<int>(of.keys.slices) * splits * split_items) {}
};

// A block's next piece of work.
struct Item {
  int g, split, first;  // KV head, token
  int tokens, tiles;
  int seen;   // tokens that all queries attend to
  int head;   // of the first part
  int parts;  // that exist
  int shift;  // Work::head_shift

  template <Storage16 T>
  __device__ Item(const Work<T>& work, int number) : shift(work.head_shift) {
    const auto n = static_cast<unsigned>(number), all = n / work.split_items;
    const int of_group = static_cast<int>(n % work.split_items) * work.item_heads;
    const int group = static_cast<int>(work.window.group_size());
    g = static_cast<int>(all / work.splits);
    split = static_cast<int>(all % work.splits);
    first = split * work.split_tokens;
    tokens = min(work.split_tokens, static_cast<int>(work.window.tokens()) - first);
    tiles = (tokens + kTileKeys - 1) / kTileKeys;
    seen = max(0, min(static_cast<int>(work.window.visible(0)) - first, tokens));
    head = g * group + of_group;
    parts = min(work.item_heads, group - of_group) << shift;
  }
  __device__ QueryPart part(int n) const { return {head + (n >> shift), of_head(n) * kPartRows, n < parts}; }
  // Of a part, its number among its head's.
  __device__ int of_head(int n) const { return n & ((1 << shift) - 1); }
  template <Storage16 T>
  __device__ Visible visible(const Window<T>& window, int n) const {
    return {window, part(n), first, tokens};
  }
};

// Requests the queries of an item, by one thread.
template <int kHeadDim>
__device__ void request_queries(const Item& item, const TensorMap& map, uint16_t* set, uint64_t* given) {
  mbarrier_arrive_expect(given, kSetSize<kHeadDim> * 2);
  for (int box = 0; box < kHeadDim / kBoxColumns; ++box) {
    for (int p = 0; p < kParts; ++p, set += kPartRows * kBoxColumns) {
      const QueryPart part = item.part(p);
      load_box(set, map, given, box * kBoxColumns, part.first, static_cast<int>(part.head));
    }
  }
}

// Requests a tile of an item, by one thread, as soon as its consumer has left its memory.
template <int kHeadDim>
__device__ void request_tile(const Item& item, int tile, const TensorMap& map, const Shared<kHeadDim>& shared,
                             OwnStages& stages) {
  uint64_t* const full = shared.full + stages.stage();
  uint16_t* to = shared.stages + stages.stage() * kStageSize<kHeadDim>;
  mbarrier_wait(shared.empty + stages.stage(), stages.ring.phase ^ 1);
  mbarrier_arrive_expect(full, kStageSize<kHeadDim> * 2);
  for (int box = 0; box < kHeadDim / kBoxColumns; ++box, to += kTileKeys * kBoxColumns) {
    load_box(to, map, full, box * kBoxColumns, item.first + tile * kTileKeys, item.g);
  }
  stages.ring.advance();
}

// The producer's work: queries and keys of all items of the block. A thread has a query's offset.
//
// log_sum_exp  null: without offsets
template <int kHeadDim, Storage16 T>
__device__ void produce(const Work<T>& work, const Maps& maps, const float* log_sum_exp,
                        const Shared<kHeadDim>& shared) {
  const int own = static_cast<int>(threadIdx.x);
  OwnStages even{0}, odd{1};
  StageRing<kQuerySets> sets;
  for (auto n = static_cast<int>(blockIdx.x); n < work.items;
       n += static_cast<int>(gridDim.x), sets.advance()) {
    const Item item(work, n);
    uint64_t* const given = shared.given + sets.stage;
    mbarrier_wait(shared.taken + sets.stage, sets.phase ^ 1);
    if (log_sum_exp != nullptr) {
      const QueryPart part = item.part(own / kPartRows);
      shared.offsets[sets.stage * kColumns + own] =
          offset_of(work.window, part, part.first + own % kPartRows, log_sum_exp);
    }
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(given);
    if (own == 0) {
      request_queries<kHeadDim>(item, maps.queries, shared.queries + sets.stage * kSetSize<kHeadDim>, given);
      for (int tile = 0; tile < item.tiles; tile += kConsumers) {
        request_tile(item, tile, maps.keys, shared, even);
        if (tile + 1 < item.tiles) request_tile(item, tile + 1, maps.keys, shared, odd);
      }
    }
    __syncwarp();
  }
}

// sums = keys of a tile times all queries.
template <int kHeadDim, Storage16 T>
__device__ void multiply(float (&sums)[kWarpgroupSums], const uint16_t* keys, const uint16_t* queries) {
  constexpr int kSteps = kBoxColumns / kDepth;  // of a box
  constexpr int kGroupBytes = 8 * kBoxColumns * 2;
  warpgroup_fence(sums);
#pragma unroll
  for (int step = 0; step < kHeadDim / kDepth; ++step) {
    const int column = step % kSteps * kDepth;
    warpgroup_mma<T>(
        sums, matrix_descriptor(keys + step / kSteps * kTileKeys * kBoxColumns + column, kGroupBytes),
        matrix_descriptor(queries + step / kSteps * kColumns * kBoxColumns + column, kGroupBytes), step > 0);
  }
  warpgroup_commit();
  warpgroup_wait<0>(sums);
}

// A part's products: a warp's 16 tokens are those of mma's C operands.
__device__ Products part_of(const float (&sums)[kWarpgroupSums], int part) {
  constexpr int kNumbers = kWarpgroupSums / kParts;
  Products products;
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) products.numbers[i / 4][i % 4] = sums[part * kNumbers + i];
  return products;
}

// A consumer's work: every other tile of all items of the block.
//
// scores  begin(item, offsets) before an item's tiles, take(item, sums, token) with the products of the
//         warp's tokens, which begin with this one of the split, end(item) behind them
template <int kHeadDim, Storage16 T, class Scores>
__device__ void consume(const Work<T>& work, const Shared<kHeadDim>& shared, int consumer, Scores& scores) {
  OwnStages stages{consumer};
  StageRing<kQuerySets> sets;
  for (auto n = static_cast<int>(blockIdx.x); n < work.items;
       n += static_cast<int>(gridDim.x), sets.advance()) {
    const Item item(work, n);
    mbarrier_wait(shared.given + sets.stage, sets.phase);
    scores.begin(item, shared.offsets + sets.stage * kColumns);
    const uint16_t* const queries = shared.queries + sets.stage * kSetSize<kHeadDim>;
#pragma unroll 1
    for (int tile = consumer; tile < item.tiles; tile += kConsumers) {
      const int stage = stages.stage();
      float sums[kWarpgroupSums];
      mbarrier_wait(shared.full + stage, stages.ring.phase);
      multiply<kHeadDim, T>(sums, shared.stages + stage * kStageSize<kHeadDim>, queries);
      if (lane() == 0) mbarrier_arrive(shared.empty + stage);
      stages.ring.advance();
      scores.take(item, sums, tile * kTileKeys + warp() % kGroupWarps * kRowsAtOnce);
    }
    __syncwarp();  // all lanes have read their offsets
    if (lane() == 0) mbarrier_arrive(shared.taken + sets.stage);
    scores.end(item);
  }
}

// The largest logit of each query and its sum of exponentials.
template <Storage16 T>
struct SumsOfSplits {
  const Work<T>& work;
  const SplitPartials& partials;
  RunningSum* shared;         // [kConsumerWarps, kColumns]
  uint64_t *summed, *joined;  // Shared's
  unsigned phase = 0;
  RunningSums<kPartRows / kFragmentRows> running[kParts] = {};

  __device__ void begin(const Item&, const float*) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) running[p].clear();
  }

  __device__ void take(const Item& item, const float (&sums)[kWarpgroupSums], int token) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (p >= item.parts) break;
      Products logits = part_of(sums, p);
#pragma unroll
      for (int i = 0; i < Products::kOwn; ++i) {
        logits.of(0, i) *= work.scale;
        logits.of(1, i) *= work.scale;
      }
      if (token + kRowsAtOnce > item.seen) logits.mask(item.visible(work.window, p), token);
      running[p].add(logits);
    }
  }

  // Joins the warps' sums, in their order; the first consumer writes them, a query a thread.
  __device__ void end(const Item& item) {
    mbarrier_wait(joined, phase ^ 1);
    RunningSum* const own = shared + (warp() - kGroupWarps) * kColumns;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      running[p].join_lanes();
      if (lane() >= 4) continue;  // eight lanes have the same sums
#pragma unroll
      for (int i = 0; i < Products::kOwn; ++i) own[p * kPartRows + QueryPart::column(i)] = running[p].of(i);
    }
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(summed);
    if (warp() / kGroupWarps == 1) {
      mbarrier_wait(summed, phase);
      write(item, static_cast<int>(threadIdx.x) % kWarpgroup);
      __syncwarp();
      if (lane() == 0) mbarrier_arrive(joined);
    }
    phase ^= 1;
  }

 private:
  __device__ void write(const Item& item, int column) const {
    RunningSum all;
    for (int w = 0; w < kConsumerWarps; ++w)
      all.largest = fmaxf(all.largest, shared[w * kColumns + column].largest);
    for (int w = 0; w < kConsumerWarps; ++w) {
      const RunningSum& each = shared[w * kColumns + column];
      all.sum += each.sum * power_of_two(each.largest - all.largest);
    }
    const QueryPart part = item.part(column / kPartRows);
    const int place = part.first + column % kPartRows;
    if (!part.exists || place >= work.window.size()) return;
    partials.write(item.split, part.head * work.window.size() + place, all.most(), all.sum);
  }
};

// The mean or summed attention to each token.
template <Storage16 T>
struct WeightsOfTokens {
  const Work<T>& work;
  float share;
  float* weights;  // [query_heads, tokens]
  float offsets[kParts][Products::kOwn] = {};

  __device__ void begin(const Item&, const float* of_columns) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int i = 0; i < Products::kOwn; ++i)
        offsets[p][i] = of_columns[p * kPartRows + QueryPart::column(i)];
    }
  }

  __device__ void take(const Item& item, const float (&sums)[kWarpgroupSums], int token) {
    const int own = token + Products::token(lane() % 2);
    float* to = weights + item.head * work.window.tokens() + (item.first + own);
    float sum = 0;  // over the parts of a head
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (p >= item.parts) break;
      Products exponents = part_of(sums, p);
#pragma unroll
      for (int i = 0; i < Products::kOwn; ++i) {
        exponents.of(0, i) = fmaf(exponents.of(0, i), work.scale, offsets[p][i]);
        exponents.of(1, i) = fmaf(exponents.of(1, i), work.scale, offsets[p][i]);
      }
      if (token + kRowsAtOnce > item.seen) exponents.mask(item.visible(work.window, p), token);
      const float of_part = sum_of_weights(exponents);
      sum = item.of_head(p) == 0 ? of_part : sum + of_part;
      if (item.of_head(p + 1) != 0) continue;
      if (lane() % 4 < 2 && own < item.tokens) *to = sum * share;
      to += work.window.tokens();
    }
  }

  __device__ void end(const Item&) const {}
};

// As window_log_sum_exp_mma_kernel.
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
// shared     1,280 head_dim + 9,368 bytes: 91,288 or 173,208 for head_dim 64 and 128
// registers  168 (sm_90a), which setmaxnreg makes 40 in the producer and 232 in the consumers
// bytes      read: 2 head_dim for each token and item of its split, the later ones from the L2 cache; the
//            queries for each item; written: 8 for each query and split
// FLOP       256 head_dim for each token and item of its split on tensor cores, an exponential and 5 for each
//            logit
template <int kHeadDim, Storage16 T>
__global__ void __launch_bounds__(kSpecialisedThreads, 1)
    window_log_sum_exp_wgmma_kernel(const __grid_constant__ Maps maps, Work<T> work, SplitPartials partials) {
  SharedMemory memory;
  const Shared<kHeadDim> shared(memory);
  shared.begin();
  specialise([&] { produce(work, maps, nullptr, shared); },
             [&](int consumer) {
               SumsOfSplits<T> sums{work, partials, shared.sums, shared.summed, shared.joined};
               consume(work, shared, consumer, sums);
             });
}

// As window_attention_mma_kernel, with blocks and items as window_log_sum_exp_wgmma_kernel's.
//
// grid, block, shared  as window_log_sum_exp_wgmma_kernel's
// registers  168 (sm_90a), which setmaxnreg makes 40 in the producer and 232 in the consumers
// bytes      read: as window_log_sum_exp_wgmma_kernel, and the queries' log-sum-exp for each item; written: 4
//            query_heads tokens
// FLOP       256 head_dim for each token and item of its split on tensor cores, an exponential and 3 for each
//            logit
template <int kHeadDim, Storage16 T>
__global__ void __launch_bounds__(kSpecialisedThreads, 1)
    window_attention_wgmma_kernel(const __grid_constant__ Maps maps, Work<T> work, const float* log_sum_exp,
                                  float share, float* weights) {
  SharedMemory memory;
  const Shared<kHeadDim> shared(memory);
  shared.begin();
  specialise([&] { produce(work, maps, log_sum_exp, shared); },
             [&](int consumer) {
               WeightsOfTokens<T> of_tokens{work, share, weights};
               consume(work, shared, consumer, of_tokens);
             });
}

// Calls launch(blocks, maps, work) with the kernels' head_dim.
template <Storage16 T, class Launch>
void with_head_dim(const Window<T>& window, Stream stream, const Launch& launch) {
  const Work<T> work(window);
  const Maps maps{row_boxes(window.queries, kPartRows), row_boxes(window.keys, kTileKeys)};
  const int64_t blocks = std::min(device().multiprocessors, work.items);
  const auto with = [&](auto head_dim) {
    launch(head_dim,
           LaunchShape{extent(blocks), extent(kSpecialisedThreads), shared_bytes<Shared<head_dim>>(), stream},
           maps, work);
  };
  if (window.keys.cols == 64) return with(std::integral_constant<int, 64>());
  with(std::integral_constant<int, 128>());
}

}  // namespace

template <Storage16 T>
bool wgmma_can(const Window<T>& window) {
  const DeviceInfo& info = device();
  const int64_t head_dim = window.keys.cols;
  return info.has_wgmma && (head_dim == 64 || head_dim == 128) && window.size() <= kColumns &&
         has_row_boxes(window.queries) && has_row_boxes(window.keys) &&
         shared_bytes<Shared<128>>() <= info.shared_memory_per_block;
}
template bool wgmma_can(const Window<Float16>&);
template bool wgmma_can(const Window<Bfloat16>&);

template <Storage16 T>
void launch_splits_wgmma(const Window<T>& window, const SplitPartials& partials, Stream stream) {
  with_head_dim(window, stream,
                [&](auto head_dim, const LaunchShape& shape, const Maps& maps, const Work<T>& work) {
                  launch<window_log_sum_exp_wgmma_kernel<head_dim, T>>(shape, maps, work, partials);
                });
}
template void launch_splits_wgmma(const Window<Float16>&, const SplitPartials&, Stream);
template void launch_splits_wgmma(const Window<Bfloat16>&, const SplitPartials&, Stream);

template <Storage16 T>
void launch_attention_wgmma(const Window<T>& window, const float* log_sum_exp, WindowReduction reduction,
                            float* weights, Stream stream) {
  const float share = 1 / divisor_of(reduction, window.size());
  with_head_dim(
      window, stream, [&](auto head_dim, const LaunchShape& shape, const Maps& maps, const Work<T>& work) {
        launch<window_attention_wgmma_kernel<head_dim, T>>(shape, maps, work, log_sum_exp, share, weights);
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
