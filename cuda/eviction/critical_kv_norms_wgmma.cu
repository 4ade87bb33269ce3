// Projected value norms by wgmma: 16-bit types, head_dim 64 and 128, compute capability 9.0.
//
// A block is three warpgroups. The first, the producer, lets TMA copy W^O to shared memory, 128 columns of
// one query head at a time, in three stages. The two others, the consumers, have the values of 128 tokens
// each in registers, as two A operands of 64 tokens, for all query heads of an item, and multiply both by
// every stage. While a consumer adds up the terms of one product, the tensor cores work on its other one or
// on the other consumer's. The projected values exist only in registers.
//
// The blocks stay and take items one after the other: 256 tokens of one KV head, with all query heads of its
// group or one. Neighbouring items have the same query heads, so that blocks that run at the same time read
// the same W^O from the L2 cache. Where there are few items, as in a decode step, the blocks of a cluster
// share one: each has sections of the columns of W^O, and the first one adds up what the others have left in
// their shared memory. How items are distributed does not change a bit of the results, because one block
// forms its sums section by section, too. Clusters are of four blocks: an H100 or H200 should have room for
// 32 of them at a time (not measured), one for each query head of a Llama-3.1-8B, where an H100 has been seen
// to keep 15 or 16 of eight.
//
// Registers decide the width of a product: a consumer's thread has 232 (primitives/warp_specialisation.hpp).
// For head_dim 128, values take 2 x 32 and products of 64 tokens by n columns 2 x n / 2: n = 256 would take
// 320 in all, n = 128 takes 192, with 40 left for addresses and sums.
//
// W^O passes from the L2 cache to shared memory once for each query head and 256 tokens, whatever n: for
// 32 query heads of Llama-3.1-8B and 32,768 tokens 128 x 32 x 1 MB = 4.3 GB, in the 1.4 ms of the products
// (at 790 TFLOP/s) 3.1 TB/s. With 128 tokens it would be twice that, more than the L2 cache delivers. A
// stage is multiplied for 2,048 cycles at the tensor cores' peak, so two stages in flight cover 2
// microseconds of latency.
#include <kvbound/cuda/primitives/cluster.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/row_boxes.hpp>
#include <kvbound/cuda/primitives/warp_specialisation.hpp>
#include <kvbound/cuda/primitives/warpgroup_mma.hpp>

#include "critical_kv_norms.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace critical_kv_norms {
namespace {

constexpr int kRows = 64;  // tokens of an A operand
constexpr int kTiles = 2;  // A operands of a consumer
constexpr int kTokens = kConsumers * kTiles * kRows;
constexpr int kDepth = 16;  // rows of W^O that an instruction takes
constexpr int kStages = 3;
constexpr int kBoxes = 2;
constexpr int kStageColumns = kBoxes * kBoxColumns;
constexpr int kSections = 8;  // of the stages of a query head
constexpr int kClusterBlocks = 4;
constexpr int kBlockSections = kSections / kClusterBlocks;
constexpr int kSums = kStageColumns / 2;  // a thread's numbers of a product
constexpr int kThreadSums = 2 * kTiles;   // a thread's sums of terms: of two tokens of each A operand

template <int kHeadDim>
inline constexpr int kBoxSize = kHeadDim* kBoxColumns;
template <int kHeadDim>
inline constexpr int kStageSize = kBoxes* kBoxSize<kHeadDim>;

template <int kHeadDim>
struct Shared {
  uint16_t* stages;  // [kStages, kBoxes, kHeadDim, kBoxColumns], permuted by the swizzle
  uint64_t* full;    // [kStages]: the stage's copies have landed
  uint64_t* empty;   // [kStages]: all warps of the consumers have multiplied by it
  float* sums;       // [kBlockSections, kThreadSums, kConsumers * kWarpgroup]: of a cluster's block each
                     // section's sums, for the first block; of a block by itself all sections' in the first

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : stages(memory.array<uint16_t>(kStages * kStageSize<kHeadDim>, 1024)),
        full(memory.array<uint64_t>(kStages)),
        empty(memory.array<uint64_t>(kStages)),
        sums(memory.array<float>(kBlockSections * kThreadSums * kConsumers * kWarpgroup)) {}
};

using Ring = StageRing<kStages>;

/// A block's next piece of work: tokens first_token.. of one KV head, for the query heads `heads`.
struct Item {
  int64_t first_token;
  Heads heads;

  template <Storage T>
  __device__ Item(const Arguments<T>& p, int64_t number)
      : first_token(number % token_tiles(p) * kTokens), heads(p, number / token_tiles(p)) {}

  template <Storage T>
  __host__ __device__ static int64_t token_tiles(const Arguments<T>& p) {
    return ceil_division(p.tokens(), kTokens);
  }
  template <Storage T>
  __host__ __device__ static int64_t count(const Arguments<T>& p) {
    return token_tiles(p) * p.values.slices * p.blocks_per_group();
  }
};

// The items of a block, or of its cluster: this one, and every so many after it.
__device__ int64_t first_item() { return blockIdx.x / static_cast<unsigned>(cluster_size()); }
__device__ int64_t items_at_a_time() { return gridDim.x / static_cast<unsigned>(cluster_size()); }

// The stages of a query head, counted over its columns, that a block goes through: all of them, or those of
// its sections, if it is in a cluster.
struct Stages {
  int first, end, of_section;

  __host__ __device__ static int section(int64_t model_dim) {
    return static_cast<int>(ceil_division(ceil_division(model_dim, kStageColumns), kSections));
  }
  __device__ explicit Stages(int64_t model_dim)
      : first(0),
        end(static_cast<int>(ceil_division(model_dim, kStageColumns))),
        of_section(section(model_dim)) {
    if (cluster_size() == 1) return;
    first = min(end, cluster_rank() * kBlockSections * of_section);
    end = min(end, first + kBlockSections * of_section);
  }
  // Whether a stage is the last of a section.
  __device__ bool ends_section(int n) const { return (n + 1) % of_section == 0 || n + 1 == end; }
  // Where in Shared::sums the sums of a stage's section go.
  __device__ int place_of_section(int n) const {
    return cluster_size() == 1 ? 0 : n / of_section % kBlockSections;
  }
};

// One thread's work: all stages of all items of the block, each as soon as the
// consumers have left its memory.
template <int kHeadDim, Storage T>
__device__ void produce(const Arguments<T>& p, const TensorMap& projection, const Shared<kHeadDim>& shared) {
  Ring ring;
  const Stages stages(p.output_projection.cols);
  for (int64_t n = first_item(); n < Item::count(p); n += items_at_a_time()) {
    const Heads heads = Item(p, n).heads;
    const int end = static_cast<int>(heads.first + heads.count);
    for (int head = static_cast<int>(heads.first); head < end; ++head) {
      for (int of_head = stages.first; of_head < stages.end; ++of_head) {
        mbarrier_wait(shared.empty + ring.stage, ring.phase ^ 1);
        uint64_t* const full = shared.full + ring.stage;
        mbarrier_arrive_expect(full, kStageSize<kHeadDim> * 2);
        uint16_t* const stage = shared.stages + ring.stage * kStageSize<kHeadDim>;
        for (int box = 0; box < kBoxes; ++box) {
          load_box(stage + box * kBoxSize<kHeadDim>, projection, full,
                   of_head * kStageColumns + box * kBoxColumns, 0, head);
        }
        ring.advance();
      }
    }
  }
}

/// The tokens of a thread's rows in an A operand that begins with `first`: this one, and the eighth after it.
__device__ int64_t token_of_thread(int64_t first) { return first + warp() % 4 * 16 + lane() / 4; }

// 64 tokens' values as A operands: lane l has rows l / 4 and l / 4 + 8 of its warp's
// 16, two numbers at a time.
template <int kHeadDim>
struct Values {
  uint32_t fragments[kHeadDim / kDepth][4];

  template <Storage T>
  __device__ void load(const DeviceTensor<const T>& values, int64_t g, int64_t first_token) {
    const int64_t token = token_of_thread(first_token);
    const T* const from = values.data + g * values.slice_stride + token * values.row_stride + lane() % 4 * 2;
    const bool inside[2] = {token < values.rows, token + 8 < values.rows};
#pragma unroll
    for (int step = 0; step < kHeadDim / kDepth; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* const pair = from + i % 2 * 8 * values.row_stride + step * kDepth + i / 2 * 8;
        fragments[step][i] = inside[i % 2] ? *reinterpret_cast<const uint32_t*>(pair) : 0;
      }
    }
  }
};

// Begins products = values stage, of 64 tokens and 128 columns.
template <Storage T, int kHeadDim>
__device__ void issue_product(float (&products)[kSums], const Values<kHeadDim>& values,
                              const uint16_t* stage) {
  constexpr int kRowBytes = kBoxColumns * 2;
#pragma unroll
  for (int step = 0; step < kHeadDim / kDepth; ++step) {
    const uint64_t columns =
        matrix_descriptor(stage + step * kDepth * kBoxColumns, 8 * kRowBytes, kBoxSize<kHeadDim> * 2);
    warpgroup_mma<T, Major::n>(products, values.fragments[step], columns, step > 0);
  }
  warpgroup_commit();
}

// Adds a product's terms to sums[half], of the tokens token_of_thread() + 8 half.
__device__ void add_terms(const float (&products)[kSums], float (&sums)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float parts[4];  // of eight terms each
#pragma unroll
    for (int part = 0; part < 4; ++part) {
#pragma unroll
      for (int i = 0; i < kSums / 8; ++i) {
        const float x = fabsf(products[8 * i + 4 * (part / 2) + 2 * half + part % 2]);
        parts[part] = i == 0 ? x : parts[part] + x;
      }
    }
    sums[half] += (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }
}

// Adds the sums of the four lanes that share a token and writes its norm.
__device__ void write_norms(const float (&sums)[2], int64_t first_token, int64_t tokens, float* norms) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = sums[half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    const int64_t token = token_of_thread(first_token) + 8 * half;
    if (lane() % 4 == 0 && token < tokens) norms[token] = sum;
  }
}

/// The first token of a consumer.
__device__ int64_t first_token_of(const Item& item, int64_t consumer) {
  return item.first_token + consumer * (kTiles * kRows);
}

// Writes the norms of a consumer's tokens.
//
// sum  sum(i) is the thread's i-th sum
template <Storage T, class Sum>
__device__ void write_all_norms(const Arguments<T>& p, const Item& item, int64_t consumer, int64_t head,
                                const Sum& sum) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float sums[2] = {sum(2 * tile), sum(2 * tile + 1)};
    write_norms(sums, first_token_of(item, consumer) + tile * kRows, p.tokens(), p.norms + head * p.tokens());
  }
}

// The place of a thread's i-th sum in Shared::sums, of a block's section.
__device__ int sum_place(int i, int section = 0) {
  return ((section * kThreadSums + i) * kConsumers - 1) * kWarpgroup + static_cast<int>(threadIdx.x);
}

// Adds up the terms of one query head's stages, section by section, in the thread's places of
// shared.sums: registers are short.
template <Storage T, int kHeadDim>
__device__ void add_head(const Shared<kHeadDim>& shared, const Values<kHeadDim> (&values)[kTiles],
                         const Stages& stages, Ring& ring) {
#pragma unroll
  for (int i = 0; i < kThreadSums; ++i) {
    for (int n = 0; n < kBlockSections; ++n) shared.sums[sum_place(i, n)] = 0;
  }
  float section[kTiles][2] = {};
  for (int n = stages.first; n < stages.end; ++n) {
    const uint16_t* const stage = shared.stages + ring.stage * kStageSize<kHeadDim>;
    float first[kSums];
    float second[kSums];
    mbarrier_wait(shared.full + ring.stage, ring.phase);
    warpgroup_fence(first, second);
    issue_product<T>(first, values[0], stage);
    issue_product<T>(second, values[1], stage);
    warpgroup_wait<1>(first);
    add_terms(first, section[0]);
    warpgroup_wait<0>(second);
    if (lane() == 0) mbarrier_arrive(shared.empty + ring.stage);  // the warp's products have read the stage
    ring.advance();
    add_terms(second, section[1]);
    if (!stages.ends_section(n)) continue;
    const int place = stages.place_of_section(n);
#pragma unroll
    for (int i = 0; i < kThreadSums; ++i) {
      shared.sums[sum_place(i, place)] += section[i / 2][i % 2];
      section[i / 2][i % 2] = 0;
    }
  }
}

// Adds up the sections' sums of a cluster's item and writes its norms. All consumers of the cluster call it,
// once, while the producers wait for the cluster twice.
template <int kHeadDim, Storage T>
__device__ void join_sections(const Arguments<T>& p, const Shared<kHeadDim>& shared, int consumer) {
  cluster_sync();
  if (cluster_rank() == 0) {
    const auto sum = [&](int i) {
      float total = 0;
#pragma unroll
      for (int n = 0; n < kSections; ++n) {
        total += map_shared(shared.sums, n / kBlockSections)[sum_place(i, n % kBlockSections)];
      }
      return total;
    };
    const Item item(p, first_item());
    write_all_norms(p, item, consumer, item.heads.first, sum);
  }
  cluster_sync();  // no block returns while the first one reads its shared memory
}

// A consumer's work: the norms of its 128 tokens of all items of the block, or their sums of its sections.
template <int kHeadDim, Storage T>
__device__ void consume(const Arguments<T>& p, const Shared<kHeadDim>& shared, int consumer) {
  Ring ring;
  const Stages stages(p.output_projection.cols);
  for (int64_t n = first_item(); n < Item::count(p); n += items_at_a_time()) {
    const Item item(p, n);
    const int64_t first_token = first_token_of(item, consumer);
    Values<kHeadDim> values[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      values[tile].load(p.values, item.heads.kv_head, first_token + tile * kRows);
    }
    for (int64_t head = item.heads.first; head < item.heads.first + item.heads.count; ++head) {
      add_head<T>(shared, values, stages, ring);
      if (cluster_size() > 1) continue;  // join_sections writes the norms
      write_all_norms(p, item, consumer, head, [&](int i) { return shared.sums[sum_place(i)]; });
    }
  }
}

// The norms of 256 tokens' projected values an item, for the query heads of the item.
//
//                                       W^O of a head, a stage: 128 columns, 3 stages in shared memory
//                                       +---------------+---------------+
//       producer: one thread, TMA  ->   |    box, 64    |    box, 64    |  head_dim, in steps of 16
//                                       +---------------+---------------+
//       values, in registers            +---------------+---------------+
//       consumer 0: 64 tokens           |                               |
//                   64 tokens           |   projected values, 64 x 128  |  -> the sums of the absolute
//       consumer 1: 64 tokens           |   at a time, in registers     |     values: a section's in
//                   64 tokens           |                               |     registers, all in shared memory
//                                       +-------------------------------+
//
// grid       one block for each multiprocessor, or for each of the ceil(tokens / 256) kv_heads
//            ceil(group / heads_per_block) items if there are fewer; if there are no more than half as many
//            as multiprocessors and heads_per_block is 1, a cluster of 4 blocks for each
// block      384: a producer's warpgroup and two consumers'
// shared     768 head_dim + 8,256 bytes: 57,408 or 106,560 for head_dim 64 and 128
// registers  168 (sm_90a), which setmaxnreg makes 40 in the producer and 232 in the consumers
// bytes      read: the values once for each item of their group; 2 head_dim model_dim of W^O for each query
//            head and 256 tokens, mostly from the L2 cache; written: 4 query_heads tokens
// FLOP       2 query_heads tokens head_dim model_dim on tensor cores; query_heads
//            tokens model_dim on fp32 units
template <int kHeadDim, Storage T>
__global__ void __launch_bounds__(kSpecialisedThreads, 1)
    norms_wgmma_kernel(const __grid_constant__ TensorMap projection, Arguments<T> p) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared<kHeadDim> shared(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full + stage, 1);
      mbarrier_init(shared.empty + stage, kConsumerWarps);
    }
    mbarrier_fence_init();
  }
  __syncthreads();
  specialise(
      [&] {
        if (threadIdx.x == 0) produce(p, projection, shared);
        for (int n = 0; cluster_size() > 1 && n < 2; ++n) cluster_sync();
      },
      [&](int consumer) {
        consume(p, shared, consumer);
        if (cluster_size() > 1) join_sections(p, shared, consumer);
      });
}

template <int kHeadDim, Storage T>
void launch_kernel(Arguments<T> arguments, Stream stream) {
  const TensorMap map = row_boxes(arguments.output_projection, kHeadDim);
  const int64_t multiprocessors = device().multiprocessors;
  if (Item::token_tiles(arguments) * arguments.values.slices >= multiprocessors) {
    arguments.heads_per_block = arguments.group_size();
  }
  const int64_t items = Item::count(arguments);
  const bool shares = arguments.heads_per_block == 1 && 2 * items <= multiprocessors;
  const LaunchShape blocks{extent(shares ? items * kClusterBlocks : std::min(multiprocessors, items)),
                           extent(kSpecialisedThreads), shared_bytes<Shared<kHeadDim>>(), stream};
  launch_dependent<norms_wgmma_kernel<kHeadDim, T>>(
      shares ? blocks.in_clusters(extent(kClusterBlocks)) : blocks, map, arguments);
}

}  // namespace

template <Storage T>
void launch_wgmma(const Arguments<T>& arguments, Stream stream) {
  if (arguments.values.cols == 64) {
    launch_kernel<64>(arguments, stream);
  } else {
    launch_kernel<128>(arguments, stream);
  }
}
template void launch_wgmma(const Arguments<Float16>&, Stream);
template void launch_wgmma(const Arguments<Bfloat16>&, Stream);

bool wgmma_can(int64_t head_dim) {
  const DeviceInfo& info = device();
  const bool has_instance = head_dim == 64 || head_dim == 128;
  return has_instance && info.has_wgmma && shared_bytes<Shared<128>>() <= info.shared_memory_per_block;
}

// 8 terms are added in order, then 4 such sums by a tree, then a section's stages and the sections in
// order, then 4 lanes by a tree.
int64_t wgmma_accumulation_depth(int64_t model_dim) {
  return 7 + 2 + Stages::section(model_dim) + kSections + 2;
}

int64_t wgmma_tensor_chain(int64_t head_dim) { return head_dim / kDepth; }

}  // namespace critical_kv_norms
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
