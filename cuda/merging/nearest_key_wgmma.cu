// The search for nearest keys by wgmma: 16-bit types, head_dim 64 and 128, compute capability 9.0.
//
// A block is three warpgroups. The first, the producer, lets TMA copy kept keys to shared memory, 128 at a
// time, in three stages, and writes what their products are multiplied by beside them. The two others, the
// consumers, have 128 leaving keys each in registers, as two A operands of 64 keys, and multiply both by
// every stage. The consumers take turns: one issues both products of its stage, and then the other one does,
// so that the tensor cores work on one's products while the other compares, and never wait for both to
// compare. No [leaving, kept] matrix exists.
//
// The blocks stay and take items one after the other: 256 leaving keys of one KV head. Neighbouring items
// have the same KV head, so that blocks that run at the same time read the same kept keys from the L2 cache:
// for 26,215 leaving and 6,553 kept keys of 8 KV heads 824 x 1.7 MB = 1.4 GB, in the 445 us of the products
// (at 790 TFLOP/s) 3.1 TB/s. How items are distributed does not change a bit of the results.
//
// Tensor cores accumulate all products of two keys. A key that has to be rescaled (nearest_key_scales.hpp) is
// rescaled in its stage by the producer's warp that has written its inverse length; consumers wait for both
// the copy and these warps.
//
// Registers: a consumer's thread has 232 (primitives/warp_specialisation.hpp). For head_dim 128, leaving keys
// take 2 x 32 and products of 64 by 128 keys 2 x 64; a product's comparison takes four instructions for each
// of its numbers, together 2 x 300 for each warp and stage, in the 2,048 cycles that its products take at the
// peak.
#include <kvbound/cuda/primitives/proxy_fence.hpp>
#include <kvbound/cuda/primitives/row_boxes.hpp>
#include <kvbound/cuda/primitives/warp_specialisation.hpp>
#include <kvbound/cuda/primitives/warpgroup_mma.hpp>

#include "nearest_key_scales.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace nearest_key_search {
namespace {

constexpr int kRows = 64;  // leaving keys of an A operand
constexpr int kTiles = 2;  // A operands of a consumer
constexpr int kItemRows = kConsumers * kTiles * kRows;
constexpr int kKeys = kWarpgroup;  // kept keys of a stage: a thread of the producer has one
constexpr int kDepth = 16;         // numbers of a key that an instruction takes
constexpr int kStages = 3;
constexpr int kBoxSize = kKeys * kBoxColumns;
constexpr int kChunk = 8;         // 16-bit numbers in 16 bytes
constexpr int kSums = kKeys / 2;  // a thread's numbers of a product

template <int kHeadDim>
inline constexpr int kStageSize = kHeadDim / kBoxColumns* kBoxSize;

template <int kHeadDim>
struct Shared {
  uint16_t* stages;  // [kStages, kHeadDim / kBoxColumns, kKeys, kBoxColumns], permuted by the swizzle
  float* inverses;   // [kStages, kKeys]: inverse_of their lengths; NaN behind the last key
  float* scores;     // [kStages, kKeys]
  uint64_t* landed;  // [kStages]: the stage's copies are complete
  uint64_t* ready;   // [kStages]: the producer's warps have written inverses, scores and what they rescale
  uint64_t* empty;   // [kStages]: all warps of the consumers have left the stage
  uint64_t* turns;   // [kConsumers]: all warps of the other consumer have issued their products of a stage

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : stages(memory.array<uint16_t>(kStages * kStageSize<kHeadDim>, 1024)),
        inverses(memory.array<float>(kStages * kKeys)),
        scores(memory.array<float>(kStages * kKeys)),
        landed(memory.array<uint64_t>(kStages)),
        ready(memory.array<uint64_t>(kStages)),
        empty(memory.array<uint64_t>(kStages)),
        turns(memory.array<uint64_t>(kConsumers)) {}
};

using Ring = StageRing<kStages>;

// A block's next piece of work: leaving keys first.. of one KV head; none of them may exist.
struct Item {
  int64_t g;
  int first, leaving, kept;

  template <Storage T>
  __device__ Item(const Arguments<T>& p, int64_t number)
      : g(number / tiles(p)),
        first(static_cast<int>(number % tiles(p)) * kItemRows),
        leaving(static_cast<int>(p.leaving_keys(g))),
        kept(first < leaving ? static_cast<int>(p.kept_keys(g)) : 0) {}

  template <Storage T>
  __host__ __device__ static int64_t tiles(const Arguments<T>& p) {
    return ceil_division(p.leaving_stride, kItemRows);
  }
  template <Storage T>
  __host__ __device__ static int64_t count(const Arguments<T>& p) {
    return tiles(p) * p.kept.keys.slices;
  }
};

// Multiplies a key of a stage by its scale: all of its chunks, in whatever order they lie.
template <int kHeadDim, Storage T>
__device__ void rescale(uint16_t* stage, int key, float scale) {
  constexpr int kChunks = kBoxColumns / kChunk;  // of a key in a box
#pragma unroll 1
  for (int chunk = 0; chunk < kHeadDim / kChunk; ++chunk) {
    const int place = key * kBoxColumns + chunk % kChunks * kChunk;
    uint4& numbers = *reinterpret_cast<uint4*>(stage + chunk / kChunks * kBoxSize + place);
    numbers = scaled<T>(numbers, scale);
  }
}

// The producer's work: all stages of all items of the block, each as soon as the consumers have left its
// memory. A thread has one key of each stage.
template <bool kBetter, int kHeadDim, Storage T>
__device__ void produce(const Arguments<T>& p, const TensorMap& keys, const Shared<kHeadDim>& shared) {
  const int own = static_cast<int>(threadIdx.x);
  Ring ring;
  for (int64_t n = blockIdx.x; n < Item::count(p); n += gridDim.x) {
    const Item item(p, n);
#pragma unroll 1
    for (int first = 0; first < item.kept; first += kKeys) {
      const int key = first + own;
      float length = std::numeric_limits<float>::quiet_NaN(), score = 0;
      if (key < item.kept) {
        length = p.kept.norms[item.g * p.kept.keys.rows + key];
        if (kBetter) score = p.score(item.g, key);
      }
      uint16_t* const stage = shared.stages + ring.stage * kStageSize<kHeadDim>;
      mbarrier_wait(shared.empty + ring.stage, ring.phase ^ 1);
      if (own == 0) {
        uint64_t* const landed = shared.landed + ring.stage;
        mbarrier_arrive_expect(landed, kStageSize<kHeadDim> * 2);
        for (int box = 0; box < kHeadDim / kBoxColumns; ++box) {
          load_box(stage + box * kBoxSize, keys, landed, box * kBoxColumns, first, static_cast<int>(item.g));
        }
      }
      shared.inverses[ring.stage * kKeys + own] = inverse_of<T>(length);
      if (kBetter) shared.scores[ring.stage * kKeys + own] = score;
      const float scale = scale_of<T>(length);
      if (__any_sync(kAllLanes, scale != 1 ? 1 : 0)) {
        mbarrier_wait(shared.landed + ring.stage, ring.phase);
        if (scale != 1) rescale<kHeadDim, T>(stage, own, scale);
        fence_async_proxy();
      }
      // Orders the lanes' writes before lane 0's arrival. In machine code it is a NOP, as the warp has not
      // diverged and its accesses to shared memory take place in order; so racecheck reports the writes of
      // the 31 others as hazards.
      __syncwarp();
      if (lane() == 0) mbarrier_arrive(shared.ready + ring.stage);
      ring.advance();
    }
  }
}

// A thread's rows of an A operand: this one, and the eighth after it.
__device__ int row_of_thread() { return warp() % 4 * 16 + lane() / 4; }

// 64 leaving keys, multiplied by their scales, as A operands: lane l has rows l / 4 and l / 4 + 8 of its
// warp's 16, two numbers at a time. Zeros behind the last key.
template <int kHeadDim>
struct LeavingTile {
  uint32_t fragments[kHeadDim / kDepth][4];

  template <Storage T>
  __device__ void load(const Arguments<T>& p, const Item& item, int first) {
    const DeviceTensor<const T>& keys = p.all.keys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + row_of_thread() + half * 8;
      const bool exists = row < item.leaving;
      const int64_t position = exists ? p.row_of(item.g, row) : 0;
      const float scale = exists ? scale_of<T>(p.all.norms[item.g * keys.rows + position]) : 1;
      const T* const from =
          keys.data + item.g * keys.slice_stride + position * keys.row_stride + lane() % 4 * 2;
#pragma unroll
      for (int eight = 0; eight < kHeadDim / 8; ++eight) {
        uint32_t pair = exists ? *reinterpret_cast<const uint32_t*>(from + eight * 8) : 0;
        if (scale != 1) pair = scaled<T>(pair, scale);
        fragments[eight / 2][half + eight % 2 * 2] = pair;
      }
    }
  }
};

// Begins products = leaving keys stage, of 64 by 128 keys.
template <Storage T, int kHeadDim>
__device__ void issue_product(float (&products)[kSums], const LeavingTile<kHeadDim>& rows,
                              const uint16_t* stage) {
#pragma unroll
  for (int step = 0; step < kHeadDim / kDepth; ++step) {
    constexpr int kSteps = kBoxColumns / kDepth;  // of a box
    const uint64_t keys =
        matrix_descriptor(stage + step / kSteps * kBoxSize + step % kSteps * kDepth, 8 * kBoxColumns * 2);
    warpgroup_mma<T>(products, rows.fragments[step], keys, step > 0);
  }
  warpgroup_commit();
}

// What a thread has found for its two rows of an A operand.
template <bool kBetter>
struct Nearest {
  Best best[2];       // cosines, multiplied by the leaving keys' lengths
  float own[2] = {};  // scores

  template <Storage T>
  __device__ void begin(const Arguments<T>& p, const Item& item, int first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      best[half] = {};
      const int row = first + row_of_thread() + half * 8;
      if (kBetter && row < item.leaving) own[half] = p.score(item.g, row);
    }
  }

  // Offers the products of a stage, whose first key is `first`.
  __device__ void offer(const float (&products)[kSums], const float* inverses, const float* scores,
                        int first) {
    const int pair = lane() % 4 * 2;
    Best found[2] = {{best[0].cosine}, {best[1].cosine}};  // in this stage, by numbers without `pair`
#pragma unroll
    for (int eight = 0; eight < kKeys / 8; ++eight) {
      const float2 inverse = *reinterpret_cast<const float2*>(inverses + eight * 8 + pair);
      const float2 score = kBetter ? *reinterpret_cast<const float2*>(scores + eight * 8 + pair) : float2{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool one = !kBetter || score.x > own[half], two = !kBetter || score.y > own[half];
        const float* const c = products + 4 * eight + 2 * half;
        found[half].offer(one ? c[0] * inverse.x : kNothing, eight * 8);
        found[half].offer(two ? c[1] * inverse.y : kNothing, eight * 8 + 1);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (found[half].index >= 0) best[half] = {found[half].cosine, first + pair + found[half].index};
    }
  }

  // Joins the four lanes that share a row and writes its result.
  template <Storage T>
  __device__ void write(const Arguments<T>& p, const Item& item, int first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      best[half].join_lanes(4);
      const int row = first + row_of_thread() + half * 8;
      if (lane() % 4 != 0 || row >= item.leaving) continue;
      const float length = p.all.norms[item.g * p.all.keys.rows + p.row_of(item.g, row)];
      p.write(item.g, row, best[half].index, clamped(best[half].cosine * inverse_of<T>(length)));
    }
  }
};

// A consumer's turns to issue products, the first consumer's first. Both have as many: all stages of an item.
struct Turns {
  uint64_t *own, *of_other;
  unsigned phase;

  template <int kHeadDim>
  __device__ Turns(const Shared<kHeadDim>& shared, int consumer)
      : own(shared.turns + consumer), of_other(shared.turns + 1 - consumer), phase(consumer == 0 ? 1 : 0) {}

  __device__ void wait() {
    mbarrier_wait(own, phase);
    phase ^= 1;
  }
  // The warp calls it.
  __device__ void pass_on() const {
    if (lane() == 0) mbarrier_arrive(of_other);
  }
};

// Offers all kept keys of an item to a consumer's two A operands.
template <Storage T, bool kBetter, int kHeadDim>
__device__ void search_item(const Shared<kHeadDim>& shared, const LeavingTile<kHeadDim> (&rows)[kTiles],
                            int kept, Ring& ring, Turns& turns, Nearest<kBetter> (&nearest)[kTiles]) {
#pragma unroll 1
  for (int key = 0; key < kept; key += kKeys) {
    const uint16_t* const stage = shared.stages + ring.stage * kStageSize<kHeadDim>;
    const float* const inverses = shared.inverses + ring.stage * kKeys;
    const float* const scores = shared.scores + ring.stage * kKeys;
    float first[kSums];
    float second[kSums];
    mbarrier_wait(shared.landed + ring.stage, ring.phase);
    mbarrier_wait(shared.ready + ring.stage, ring.phase);
    turns.wait();
    warpgroup_fence(first, second);
    issue_product<T>(first, rows[0], stage);
    issue_product<T>(second, rows[1], stage);
    turns.pass_on();
    warpgroup_wait<1>(first);
    nearest[0].offer(first, inverses, scores, key);
    warpgroup_wait<0>(second);
    nearest[1].offer(second, inverses, scores, key);
    __syncwarp();  // all lanes have read inverses and scores
    if (lane() == 0) mbarrier_arrive(shared.empty + ring.stage);
    ring.advance();
  }
}

// A consumer's work: the nearest kept keys of its 128 leaving keys of all items of the block.
template <bool kBetter, int kHeadDim, Storage T>
__device__ void consume(const Arguments<T>& p, const Shared<kHeadDim>& shared, int consumer) {
  Ring ring;
  Turns turns(shared, consumer);
  for (int64_t n = blockIdx.x; n < Item::count(p); n += gridDim.x) {
    const Item item(p, n);
    const int first = item.first + consumer * (kTiles * kRows);
    LeavingTile<kHeadDim> rows[kTiles];
    Nearest<kBetter> nearest[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      rows[tile].load(p, item, first + tile * kRows);
      nearest[tile].begin(p, item, first + tile * kRows);
    }
    search_item<T>(shared, rows, item.kept, ring, turns, nearest);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) nearest[tile].write(p, item, first + tile * kRows);
  }
}

// The nearest kept keys of 256 leaving keys of a KV head an item.
//
//                                         kept keys, a stage: 128 keys, 3 stages in shared memory
//                                         +-------------------------------+
//       producer: TMA                ->   |          box, 128 keys        |  64 of head_dim, in steps of 16
//                                         |          box, 128 keys        |  the next 64, for head_dim 128
//                 128 threads        ->   |  inverse lengths, scores      |
//       leaving keys, in registers        +-------------------------------+
//       consumer 0: 64 keys               |                               |
//                   64 keys               |  products, 64 x 128 at a      |  -> of each leaving key the
//       consumer 1: 64 keys               |  time, in registers           |     largest product over the kept
//                   64 keys               |                               |     key's length, and its index
//                                         +-------------------------------+
//
// grid       one block for each multiprocessor, or for each of the ceil(most leaving / 256) kv_heads
//            items if there are fewer
// block      384: a producer's warpgroup and two consumers'
// shared     768 head_dim + 3,184 bytes: 52,336 or 101,488 for head_dim 64 and 128
// registers  168 (sm_90a), which setmaxnreg makes 40 in the producer and 232 in the consumers
// bytes      read: 2 head_dim for each leaving key; 2 head_dim + 4 for each kept key, again for each item,
//            mostly from the L2 cache; written: 12 for each leaving key
// FLOP       2 leaving kept head_dim on tensor cores; 1 on fp32 units for each of the leaving kept products
template <bool kBetter, int kHeadDim, Storage T>
__global__ void __launch_bounds__(kSpecialisedThreads, 1)
    nearest_keys_wgmma_kernel(const __grid_constant__ TensorMap keys, Arguments<T> p) {
  SharedMemory memory;
  const Shared<kHeadDim> shared(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.landed + stage, 1);
      mbarrier_init(shared.ready + stage, kGroupWarps);
      mbarrier_init(shared.empty + stage, kConsumerWarps);
    }
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      mbarrier_init(shared.turns + consumer, kGroupWarps);
    }
    mbarrier_fence_init();
  }
  __syncthreads();
  specialise([&] { produce<kBetter>(p, keys, shared); },
             [&](int consumer) { consume<kBetter>(p, shared, consumer); });
}

template <bool kBetter, int kHeadDim, Storage T>
void launch_kernel(const Arguments<T>& arguments, Stream stream) {
  const TensorMap map = row_boxes(arguments.kept.keys, kKeys);
  const int64_t blocks = std::min<int64_t>(device().multiprocessors, Item::count(arguments));
  launch<nearest_keys_wgmma_kernel<kBetter, kHeadDim, T>>(
      {extent(blocks), extent(kSpecialisedThreads), shared_bytes<Shared<kHeadDim>>(), stream}, map,
      arguments);
}

}  // namespace

template <bool kBetter, Storage T>
void launch_wgmma(const Arguments<T>& arguments, Stream stream) {
  if (!has_row_boxes(arguments.kept.keys)) return launch_mma<kBetter>(arguments, stream);
  if (arguments.kept.keys.cols == 64) {
    launch_kernel<kBetter, 64>(arguments, stream);
  } else {
    launch_kernel<kBetter, 128>(arguments, stream);
  }
}
template void launch_wgmma<false>(const Arguments<Float16>&, Stream);
template void launch_wgmma<false>(const Arguments<Bfloat16>&, Stream);
template void launch_wgmma<true>(const Arguments<Float16>&, Stream);
template void launch_wgmma<true>(const Arguments<Bfloat16>&, Stream);

bool wgmma_can(int64_t head_dim) {
  const DeviceInfo& info = device();
  const bool has_instance = head_dim == 64 || head_dim == 128;
  return has_instance && info.has_wgmma && shared_bytes<Shared<128>>() <= info.shared_memory_per_block;
}

int64_t wgmma_tensor_chain(int64_t head_dim) { return ceil_division(head_dim, kDepth); }

}  // namespace nearest_key_search
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
