// OBCache's scores of a prompt by wgmma (window_items.hpp).
//
// An item's queries stay in shared memory, and their outputs times G as 16-bit numbers, three of BF16 or two
// of FP16 for each (primitives/number_parts.hpp). The consumers take 64 tokens each in turn: they multiply
// the keys by all queries and the values by all parts of outputs, the smallest part first and all on the same
// sums; then the tensor cores work for the other consumer, while scores are formed in registers. Keys and
// values follow each other through a consumer's three stages.
//
// For a Llama-3.1-8B's window of 32 queries 64 tokens, 32 KB, take 1,800 cycles of a multiprocessor's share
// of an H200's memory bandwidth, 2,048 of the tensor cores, and about 1,400 of one consumer's instructions,
// all calculated: tensor cores are the limit.
#include <kvbound/cuda/primitives/proxy_fence.hpp>

#include "change_scores.hpp"
#include "obcache_kernels.hpp"
#include "snap_kv_kernels.hpp"
#include "window_items.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace obcache_kernels {
namespace {

using namespace window_items;

constexpr int kTokens = 64;  // of a tile
constexpr int kStages = 6;
constexpr int kQueryThreads = 2;  // of the consumers, which write a query's parts
static_assert(kQueries * kQueryThreads == kConsumers * kWarpgroup);

using Stages = OwnStages<kStages>;

template <Change change>
constexpr bool kHasProducts = change != Change::value;  // of values and outputs

template <Change change, Storage16 T, int kHeadDim>
struct Shared {
  using Rows = Tiles<kHeadDim, kTokens, kStages, 1>;
  static constexpr int kCount = kHasProducts<change> ? NumberParts<T>::kCount : 0;

  Rows rows;          // a stage has the keys or the values of 64 tokens, which one consumer multiplies
  uint16_t* outputs;  // [kCount, kBoxes, kQueries, kBoxColumns], permuted as queries are
  KnownQuery* known;  // [kQueries]

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : rows(memory),
        outputs(memory.array<uint16_t>(kCount * Rows::kSetSize, 1024)),
        known(memory.array<KnownQuery>(kQueries)) {}

  __device__ const uint16_t* part(int number) const { return outputs + number * Rows::kSetSize; }

  // Puts numbers 8 v.. of a query's output times G there, in parts.
  __device__ void put_vector(const float2 (&numbers)[4], float scale, int query, int v) const {
    constexpr int kUnit = 8, kUnits = kBoxColumns / kUnit;  // of 16 bytes
    uint32_t words[kCount][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const NumberParts<T> both(numbers[i].x * scale, numbers[i].y * scale);
#pragma unroll
      for (int part = 0; part < kCount; ++part) words[part][i] = both.pairs[part];
    }
    const int row = v / kUnits * kQueries + query, place = (v % kUnits ^ row % kUnits) * kUnit;
#pragma unroll
    for (int part = 0; part < kCount; ++part) {
      *reinterpret_cast<uint4*>(outputs + part * Rows::kSetSize + row * kBoxColumns + place) = {
          words[part][0], words[part][1], words[part][2], words[part][3]};
    }
  }
};

struct AllMaps {
  Maps window;
  TensorMap values;
};

// The producer's work, by one thread: queries, keys and values of all items of the block.
template <Change change, Storage16 T, int kHeadDim>
__device__ void produce(const Work<T>& work, const AllMaps& maps, const Shared<change, T, kHeadDim>& shared) {
  if (threadIdx.x != 0) return;
  Stages stages[kConsumers] = {{0}, {1}};
  StageRing<1> set;
  const auto request = [&](const Item& item, int tile, Stages& of) {
    shared.rows.request_tile(item, tile, maps.window.keys, of.stage(), of.ring.phase);
    of.ring.advance();
    if constexpr (kHasProducts<change>) {
      shared.rows.request_tile(item, tile, maps.values, of.stage(), of.ring.phase);
      of.ring.advance();
    }
  };
  for (auto n = static_cast<int>(blockIdx.x); n < work.items;
       n += static_cast<int>(gridDim.x), set.advance()) {
    const Item item(work, n);
    mbarrier_wait(shared.rows.taken, set.phase ^ 1);
    shared.rows.request_queries(item, maps.window.queries, 0);
    for (int tile = 0; tile < shared.rows.count(item); tile += kConsumers) {
      request(item, tile, stages[0]);
      if (tile + 1 < shared.rows.count(item)) request(item, tile + 1, stages[1]);
    }
  }
}

// Puts the outputs of an item's queries times G into shared memory, and what is known of the queries. Two
// neighbouring threads have a query, and every other eight of its numbers.
template <Change change, Storage16 T, int kHeadDim>
__device__ void put_queries(const Arguments<T>& p, const Item& item,
                            const Shared<change, T, kHeadDim>& shared) {
  constexpr int kVectors = kHeadDim / 8 / kQueryThreads;
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, query = thread / kQueryThreads;
  const QueryPart part = item.part(query / kPartRows);
  const int place = part.first + query % kPartRows;
  float scale = 1;
  if constexpr (kHasProducts<change>) {
    const bool exists = part.exists && place < p.window.size();
    const float* const row =
        p.gram_outputs + (exists ? place * p.window.queries.slices + part.head : 0) * kHeadDim;
    const auto load = [&](int v, float2(&numbers)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) numbers[i] = load_pair(row, 8 * v + 2 * i, exists ? kHeadDim : 0);
    };
    if constexpr (NumberParts<T>::kScales) {
      float most = 0;
#pragma unroll 4
      for (int n = 0; n < kVectors; ++n) {
        float2 numbers[4];
        load(n * kQueryThreads + thread % kQueryThreads, numbers);
#pragma unroll
        for (int i = 0; i < 4; ++i) most = fmaxf(most, fmaxf(fabsf(numbers[i].x), fabsf(numbers[i].y)));
      }
      scale = NumberParts<T>::scale_of(fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1)));
    }
#pragma unroll 4
    for (int n = 0; n < kVectors; ++n) {
      const int v = n * kQueryThreads + thread % kQueryThreads;
      float2 numbers[4];
      load(v, numbers);
      shared.put_vector(numbers, scale, query, v);
    }
  }
  if (thread % kQueryThreads != 0) return;
  shared.known[query] = KnownQuery::of<change>(p, part, place, 1 / scale, item.first, item.tokens);
}

// The values' lengths under G of a thread's two tokens, by the queries' heads.
struct ValueNorms {
  float of_part[kParts][2];

  // token  the first of the warp's 16, of the split
  template <Storage16 T>
  __device__ ValueNorms(const Arguments<T>& p, const Item& item, int token) {
#pragma unroll
    for (int i = 0; i < kParts * 2; ++i) {
      const int part = i / 2, own = token + ItemProducts::token(i % 2);
      const bool exists = part < item.parts && own < item.tokens;
      of_part[part][i % 2] =
          exists ? p.norms[item.part(part).head * p.window.tokens() + (item.first + own)] : 0;
    }
  }
};

// Begins the products of 64 values with all parts of outputs.
template <int kHeadDim, Storage16 T, class Outputs>
__device__ void begin_products(float (&products)[kWarpgroupSums], const uint16_t* values,
                               const Outputs& outputs) {
  constexpr int kCount = NumberParts<T>::kCount;
#pragma unroll
  for (int part = kCount - 1; part >= 0; --part) {
    begin_product<kHeadDim, kTokens, kQueries, T>(products, values, outputs.part(part), part < kCount - 1);
    if constexpr (NumberParts<T>::kScales) {
      if (part == 0) break;
      warpgroup_commit();
      warpgroup_wait<0>(products);
#pragma unroll
      for (float& product : products) product *= 1 / NumberParts<T>::kShift;
      warpgroup_fence(products);
    }
  }
  warpgroup_commit();
}

// A consumer's work: every other 64 tokens of all items of the block.
template <Change change, Storage16 T, int kHeadDim>
__device__ void consume(const Arguments<T>& p, const Work<T>& work, const Shared<change, T, kHeadDim>& shared,
                        int consumer) {
  const auto& rows = shared.rows;
  Stages stages{consumer};
  StageRing<1> set;
  const auto wait = [&](const Stages& of) {
    mbarrier_wait(rows.full + of.stage(), of.ring.phase);
    return rows.tile(of.stage());
  };
  const auto leave = [&] {
    if (lane() == 0) mbarrier_arrive(rows.empty + stages.stage());
    stages.ring.advance();
  };
  for (auto n = static_cast<int>(blockIdx.x); n < work.items;
       n += static_cast<int>(gridDim.x), set.advance()) {
    const Item item(work, n);
    mbarrier_wait(rows.taken, set.phase ^ 1);
    put_queries(p, item, shared);
    fence_async_proxy();
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(rows.given);
    mbarrier_wait(rows.given, set.phase);
#pragma unroll 1
    for (int tile = consumer; tile < rows.count(item); tile += kConsumers) {
      const int token = tile * kTokens + warp() % kGroupWarps * kRowsAtOnce;
      const ValueNorms norms(p, item, token);
      float logits[kWarpgroupSums], products[kWarpgroupSums];  // of `value` there are none
      const uint16_t* const keys = wait(stages);
      if constexpr (kHasProducts<change>) {
        Stages next = stages;
        next.ring.advance();
        const uint16_t* const values = wait(next);
        warpgroup_fence(logits, products);
        begin_product<kHeadDim, kTokens, kQueries, T>(logits, keys, rows.query_set(0));
        warpgroup_commit();
        begin_products<kHeadDim, T>(products, values, shared);
        warpgroup_wait<1>(logits);
        leave();
        warpgroup_wait<0>(products);
        leave();
      } else {
        multiply<kHeadDim, kTokens, kQueries, T>(logits, keys, rows.query_set(0));
        leave();
      }
      write_sums(work, item, token, 1, p.scores, [&](int part) {
        ItemProducts of_keys = part_of(logits, part), of_values{};
        if constexpr (kHasProducts<change>) of_values = part_of(products, part);
        const Visible visible(work.window, item.part(part), item.first, item.tokens);
        float sums[2];
        PartScores<change, T, kPartRows / kFragmentRows>{p, item.part(part), shared.known + part * kPartRows}
            .add_up(of_keys, of_values, work.scale, norms.of_part[part], visible, token, sums);
        return sum_over_queries(sums);
      });
    }
    __syncwarp();  // all lanes have read what is known
    if (lane() == 0) mbarrier_arrive(rows.taken);
  }
}

// As window_change_scores_mma_kernel, in one launch.
//
//                                       a split of the tokens, 64 in a tile
//                                       keys                  values
//                                       +-----------------+   +-----------------+
//       producer: TMA              ->   |  64 of a tile   |   |  64 of a tile   |   head_dim, in steps of 16
//                                       +-----------------+   +-----------------+
//       in shared memory: queries,      |                 |   |                 |
//       outputs G in parts;        ->   |  q k, 64 x 128  |   |  oG v, 64 x 128 |   consumer 0: 0, 2, ...
//       4 parts of 32 queries:          |  in registers   |   |  in registers   |   consumer 1: 1, 3, ...
//       of 4, 2 or 1 heads              +-----------------+   +-----------------+   -> sums over the queries
//
// grid       one block for each of the kv_heads splits ceil(group parts / 4) items, splits so that every
//            multiprocessor has one; parts 1, 2 or 4 of a window of up to 32, 64, 128
// block      384: a producer's warpgroup and two consumers'
// shared     256 head_dim (4 + parts) + 2,160 bytes, 3 parts of BF16's outputs, 2 of FP16's, none of `value`:
//            231,536 for head_dim 128 and BF16
// registers  168 (sm_90a), which setmaxnreg makes 40 in the producer and 232 in the consumers
// bytes      read: 4 head_dim for each token and item of its split, 2 head_dim of `value`, the later ones
//            from the L2 cache; 4 for each token and query head; the queries, their outputs and norms for
//            each item; written: 4 query_heads tokens
// FLOP       256 head_dim for each token and item of its split, on tensor cores, for logits, three times as
//            many for BF16's outputs, twice for FP16's; 14 and an exponential for each query and token
template <Change change, Storage16 T, int kHeadDim>
__global__ void __launch_bounds__(kSpecialisedThreads, 1)
    window_change_scores_wgmma_kernel(const __grid_constant__ AllMaps maps, Arguments<T> p, Work<T> work) {
  SharedMemory memory;
  const Shared<change, T, kHeadDim> shared(memory);
  shared.rows.begin(kGroupWarps, kConsumerWarps + 1);
  specialise([&] { produce(work, maps, shared); }, [&](int consumer) { consume(p, work, shared, consumer); });
}

// So that multiprocessors have one item each.
template <Storage16 T>
int64_t tokens_of_split(const Window<T>& window) {
  const int64_t items = Work<T>(window, window.tokens()).items;
  const int64_t splits = std::max<int64_t>(device().multiprocessors / items, 1);
  return round_up(ceil_division(window.tokens(), splits), int64_t{kTokens});
}

}  // namespace

template <Storage16 T>
bool wgmma_can(const Arguments<T>& arguments) {
  return snap_kv_kernels::wgmma_can(arguments.window) && has_row_boxes(arguments.values) &&
         shared_bytes<Shared<Change::exact, T, 128>>() <= device().shared_memory_per_block;
}
template bool wgmma_can(const Arguments<Float16>&);
template bool wgmma_can(const Arguments<Bfloat16>&);

template <Storage16 T>
void launch_wgmma(Change change, const Arguments<T>& arguments, Stream stream) {
  const Work<T> work(arguments.window, tokens_of_split(arguments.window));
  const AllMaps maps{Maps(arguments.window), row_boxes(arguments.values, kBoxKeys)};
  obcache_terms::for_change(change, [&]<Change of>() {
    with_head_dim(work, [&](auto head_dim, dim3 blocks) {
      launch<window_change_scores_wgmma_kernel<of, T, head_dim>>(
          {blocks, extent(kSpecialisedThreads), shared_bytes<Shared<of, T, head_dim>>(), stream}, maps,
          arguments, work);
    });
  });
}
template void launch_wgmma(Change, const Arguments<Float16>&, Stream);
template void launch_wgmma(Change, const Arguments<Bfloat16>&, Stream);

}  // namespace obcache_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
