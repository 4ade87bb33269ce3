// The search for nearest keys by mma.sync: 16-bit types, any head_dim, compute capability 8.0.
//
// A warp has its leaving keys in registers, as the A operand. The kept keys are copied to shared memory 64
// at a time, into two buffers, and every warp of the block multiplies by every tile. Tensor cores
// accumulate the products of kChain steps of 16; these sums are added in single precision outside them. A
// product is compared as soon as it is formed: a thread has the largest one of each of its rows, and no
// [leaving, kept] matrix exists.
//
// Keys whose products may overflow or underflow are multiplied by a power of two where they are loaded
// (nearest_key_scales.hpp).
#include <kvbound/cuda/primitives/async_copy.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>

#include "nearest_key_scales.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace nearest_key_search {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 2;
constexpr int kKeys = 64;  // of a tile
constexpr int kTile = 16;  // rows, keys and depth of the tensor cores' tiles
constexpr int kChain = 4;  // steps of 16 that the tensor cores accumulate
constexpr int kChunk = 8;  // 16-bit numbers in 16 bytes

// kSteps: the tiles of 16 that head_dim is padded to with zeros. A warp has 32 leaving keys
// for up to 8 steps, else 16.
template <int kSteps>
inline constexpr int kRowTiles = kSteps <= 8 ? 2 : 1;
template <int kSteps>
inline constexpr int kWarpRows = kRowTiles<kSteps>* kTile;
template <int kSteps>
inline constexpr int kBlockRows = kWarps* kWarpRows<kSteps>;
template <int kSteps>
inline constexpr int kChunks = kSteps* kTile / kChunk;  // of a kept key
template <int kSteps>
inline constexpr int kTileSize = kKeys* kSteps* kTile;

template <int kSteps>
struct Shared {
  uint16_t* tiles;  // [kStages, kKeys, kSteps * kTile] of kept keys, a key's chunks permuted by swizzled
  float* inverses;  // [kStages, kKeys]: inverse_of their lengths; NaN behind the last key
  float* scores;    // [kStages, kKeys]

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : tiles(memory.array<uint16_t>(kStages * kTileSize<kSteps>)),
        inverses(memory.array<float>(kStages * kKeys)),
        scores(memory.array<float>(kStages * kKeys)) {}
};

// The place of a key's chunk in a tile: ldmatrix reads one chunk of eight keys at a
// time, without bank conflicts.
template <int kSteps>
__device__ int swizzled(int key, int chunk) {
  static_assert(kChunks<kSteps> % 8 == 0, "eight keys' chunks of the same number lie in different banks");
  return (key * kChunks<kSteps> + (chunk ^ (key % 8))) * kChunk;
}

// Starts the copy of a tile of kept keys, if it exists; zeros behind the last key and behind head_dim.
template <int kSteps, Storage T>
__device__ void load_tile(const Arguments<T>& p, int64_t g, int tile, int kept, uint16_t* tiles) {
  const DeviceTensor<const T>& keys = p.kept.keys;
  constexpr int kKeysAtOnce = kThreads / kChunks<kSteps>;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks<kSteps>;
  const int first = tile * kKeys;
  for (int key = static_cast<int>(threadIdx.x) / kChunks<kSteps>; first < kept && key < kKeys;
       key += kKeysAtOnce) {
    const bool inside = first + key < kept && chunk * kChunk < keys.cols;
    const T* from =
        keys.data + g * keys.slice_stride + int64_t{first + key} * keys.row_stride + chunk * kChunk;
    async_copy16(tiles + tile % kStages * kTileSize<kSteps> + swizzled<kSteps>(key, chunk),
                 inside ? from : keys.data, inside ? 16 : 0);
  }
  async_commit();
}

// The kept key of a tile whose length and score this thread reads: thread t has key t,
// the last ones have none.
struct OwnKey {
  float length = 0;
  float score = 0;

  // Reads them in device memory, of a tile that may not exist.
  template <bool kBetter, Storage T>
  __device__ void read(const Arguments<T>& p, int64_t g, int tile, int kept) {
    const int key = tile * kKeys + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= kKeys) return;
    length = key < kept ? p.kept.norms[g * p.kept.keys.rows + key] : std::numeric_limits<float>::quiet_NaN();
    if (kBetter && key < kept) score = p.score(g, key);
  }
  template <bool kBetter, Storage T, int kSteps>
  __device__ void write(const Shared<kSteps>& shared, int stage) const {
    if (threadIdx.x >= kKeys) return;
    shared.inverses[stage * kKeys + threadIdx.x] = inverse_of<T>(length);
    if (kBetter) shared.scores[stage * kKeys + threadIdx.x] = score;
  }
  // Multiplies the key by its scale.
  template <int kSteps, Storage T>
  __device__ void rescale(uint16_t* tile) const {
    const float scale = scale_of<T>(length);
    for (int chunk = 0; scale != 1 && chunk < kChunks<kSteps>; ++chunk) {
      uint4& numbers =
          *reinterpret_cast<uint4*>(tile + swizzled<kSteps>(static_cast<int>(threadIdx.x), chunk));
      numbers = scaled<T>(numbers, scale);
    }
  }
};

// A warp's leaving keys, multiplied by their scales, as the A operands of m16n8k16: lane l has rows l / 4 and
// l / 4 + 8 of a tile, two numbers at a time. Zeros behind the last key.
template <int kSteps>
struct LeavingKeys {
  uint32_t fragments[kRowTiles<kSteps>][kSteps][4];

  __device__ static int row(int tile, int half) { return tile * kTile + lane() / 4 + half * 8; }

  template <Storage T>
  __device__ LeavingKeys(const Arguments<T>& p, int64_t g, int first, int leaving) {
    const DeviceTensor<const T>& keys = p.all.keys;
#pragma unroll
    for (int tile = 0; tile < kRowTiles<kSteps>; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool exists = first + row(tile, half) < leaving;
        const int64_t position = exists ? p.row_of(g, first + row(tile, half)) : 0;
        const float scale = exists ? scale_of<T>(p.all.norms[g * keys.rows + position]) : 1;
        const T* const from = keys.data + g * keys.slice_stride + position * keys.row_stride + lane() % 4 * 2;
#pragma unroll
        for (int eight = 0; eight < 2 * kSteps; ++eight) {
          const bool inside = exists && eight * kChunk + lane() % 4 * 2 < keys.cols;
          uint32_t& pair = fragments[tile][eight / 2][half + eight % 2 * 2];
          pair = inside ? *reinterpret_cast<const uint32_t*>(from + eight * kChunk) : 0;
          if (scale != 1) pair = scaled<T>(pair, scale);
        }
      }
    }
  }
};

// What a thread has found for its rows of the warp's leaving keys, half a tile of 16
// having two rows of a thread.
template <bool kBetter, int kSteps>
struct Nearest {
  Best best[kRowTiles<kSteps>][2];       // cosines, multiplied by the leaving keys' lengths
  float own[kRowTiles<kSteps>][2] = {};  // scores

  template <Storage T>
  __device__ Nearest(const Arguments<T>& p, int64_t g, int first, int leaving) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles<kSteps>; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + LeavingKeys<kSteps>::row(tile, half);
        if (kBetter && row < leaving) own[tile][half] = p.score(g, row);
      }
    }
  }

  // Offers the products of 8 kept keys, of which this thread has two: `key` and the next one.
  __device__ void offer(const float (&products)[kRowTiles<kSteps>][4], const float* inverses,
                        const float* scores, int key) {
    const float2 inverse = *reinterpret_cast<const float2*>(inverses + lane() % 4 * 2);
    const float2 score = kBetter ? *reinterpret_cast<const float2*>(scores + lane() % 4 * 2) : float2{0, 0};
#pragma unroll
    for (int tile = 0; tile < kRowTiles<kSteps>; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Best& nearest = best[tile][half];
        const float(&c)[4] = products[tile];
        const bool one = !kBetter || score.x > own[tile][half], two = !kBetter || score.y > own[tile][half];
        nearest.offer(one ? c[2 * half] * inverse.x : kNothing, key);
        nearest.offer(two ? c[2 * half + 1] * inverse.y : kNothing, key + 1);
      }
    }
  }

  // Joins the four lanes that share a row and writes its result.
  template <Storage T>
  __device__ void write(const Arguments<T>& p, int64_t g, int first, int leaving) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles<kSteps>; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Best& nearest = best[tile][half];
        nearest.join_lanes(4);
        const int row = first + LeavingKeys<kSteps>::row(tile, half);
        if (lane() % 4 != 0 || row >= leaving) continue;
        const float length = p.all.norms[g * p.all.keys.rows + p.row_of(g, row)];
        p.write(g, row, nearest.index, clamped(nearest.cosine * inverse_of<T>(length)));
      }
    }
  }
};

// products[half][tile] += the products of kChain steps, or = for the first ones: of a warp's leaving keys and
// twice 8 kept ones, of which this lane gives the address of `row`.
template <Storage T, int kSteps>
__device__ void add_chain(float (&products)[2][kRowTiles<kSteps>][4], const LeavingKeys<kSteps>& rows,
                          const uint16_t* keys, int row, int first_step) {
  float chain[2][kRowTiles<kSteps>][4] = {};
#pragma unroll
  for (int step = first_step; step < first_step + kChain; ++step) {
    uint32_t b[4];  // 16 numbers of twice 8 keys
    // The permutation is the same for all keys, as 16 is 0 modulo 8.
    ldmatrix_x4(b, keys + swizzled<kSteps>(row, step * 2 + lane() / 8 % 2));
    const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
    for (int t = 0; t < kRowTiles<kSteps>; ++t) {
      mma_m16n8k16<T>(chain[0][t], rows.fragments[t][step], left);
      mma_m16n8k16<T>(chain[1][t], rows.fragments[t][step], right);
    }
  }
#pragma unroll
  for (int i = 0; i < 8 * kRowTiles<kSteps>; ++i) {
    const int half = i / (4 * kRowTiles<kSteps>), t = i / 4 % kRowTiles<kSteps>;
    float& sum = products[half][t][i % 4];
    sum = first_step == 0 ? chain[half][t][i % 4] : sum + chain[half][t][i % 4];
  }
}

// Forms the products of a warp's leaving keys and one tile, and offers them. `first`: the tile's first key.
template <Storage T, bool kBetter, int kSteps>
__device__ void search_tile(const LeavingKeys<kSteps>& rows, const uint16_t* tile, const float* inverses,
                            const float* scores, int first, Nearest<kBetter, kSteps>& nearest) {
  const int row = lane() / 16 * 8 + lane() % 8;  // of twice 8 keys, whose address this lane gives
#pragma unroll 1                                 // unrolled, it takes too many registers
  for (int key = 0; key < kKeys; key += kTile) {
    float products[2][kRowTiles<kSteps>][4];  // with 8 keys, and with the next 8
#pragma unroll
    for (int step = 0; step < kSteps; step += kChain) {
      add_chain<T>(products, rows, tile + key * kSteps * kTile, row, step);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = key + half * 8;
      nearest.offer(products[half], inverses + at, scores + at, first + at + lane() % 4 * 2);
    }
  }
}

// The nearest kept keys of 128 leaving keys of a KV head; 16 leaving keys a warp for kSteps 16, not drawn.
//
//                                         kept keys, a tile: 64, 2 tiles in shared memory
//                                         +------+------+------+------+
//                                         |  16  |  16  |  16  |  16  |  head_dim, in kSteps steps of 16
//                                         +------+------+------+------+
//       leaving keys, in registers        +------+------+------+------+
//       warp 0: 32 keys, head_dim         |      |      |      |      |
//       warp 1: 32 keys, head_dim         |   products, in            |  -> of each leaving key the largest
//       warp 2: 32 keys, head_dim         |   registers, 32 x 16 at   |     product over the kept key's
//       warp 3: 32 keys, head_dim         |   a time                  |     length, and its index
//                                         +------+------+------+------+
//
// grid       (ceil(most leaving / 128), kv_heads); 64 leaving keys a block for kSteps 16
// block      128
// shared     4,096 kSteps + 1,024 bytes: 17,408, 33,792 or 66,560 for kSteps 4, 8 and 16
// registers  kSteps 4: 96-106, 8: 158-162, 16: 162-164 (sm_90a); 94-105, 154-158, 162-164 (sm_80)
// bytes      read: 2 head_dim for each leaving key; 2 head_dim + 4 for each kept key, again for each block,
//            mostly from the L2 cache; written: 12 for each leaving key
// FLOP       2 leaving kept (16 kSteps) on tensor cores; kSteps / kChain on fp32 units for each of
//            the leaving kept products
template <bool kBetter, int kSteps, Storage T>
__global__ void __launch_bounds__(kThreads, 3) nearest_keys_mma_kernel(Arguments<T> p) {
  SharedMemory memory;
  const Shared<kSteps> shared(memory);
  const int64_t g = blockIdx.y;
  const auto leaving = static_cast<int>(p.leaving_keys(g)), kept = static_cast<int>(p.kept_keys(g));
  if (static_cast<int64_t>(blockIdx.x) * kBlockRows<kSteps> >= leaving) return;
  const int first = static_cast<int>(blockIdx.x) * kBlockRows<kSteps> + warp() * kWarpRows<kSteps>;
  load_tile<kSteps>(p, g, 0, kept, shared.tiles);
  OwnKey own;
  own.read<kBetter>(p, g, 0, kept);
  const LeavingKeys<kSteps> rows(p, g, first, leaving);
  Nearest<kBetter, kSteps> nearest(p, g, first, leaving);
  for (int n = 0; n * kKeys < kept; ++n) {
    const int stage = n % kStages;
    uint16_t* const tile = shared.tiles + stage * kTileSize<kSteps>;
    async_wait<0>();
    own.write<kBetter, T>(shared, stage);
    // All threads see tile n, and none reads the one before any more.
    if (__syncthreads_or(scale_of<T>(own.length) != 1)) {
      own.rescale<kSteps, T>(tile);
      __syncthreads();
    }
    load_tile<kSteps>(p, g, n + 1, kept, shared.tiles);
    own.read<kBetter>(p, g, n + 1, kept);
    if (first >= leaving) continue;
    search_tile<T>(rows, tile, shared.inverses + stage * kKeys, shared.scores + stage * kKeys, n * kKeys,
                   nearest);
  }
  nearest.write(p, g, first, leaving);
}

template <bool kBetter, int kSteps, Storage T>
void launch_kernel(const Arguments<T>& arguments, Stream stream) {
  launch<nearest_keys_mma_kernel<kBetter, kSteps, T>>(
      {extent(ceil_division(arguments.leaving_stride, kBlockRows<kSteps>), arguments.kept.keys.slices),
       extent(kThreads), shared_bytes<Shared<kSteps>>(), stream},
      arguments);
}

}  // namespace

template <bool kBetter, Storage T>
void launch_mma(const Arguments<T>& arguments, Stream stream) {
  const int64_t head_dim = arguments.kept.keys.cols;
  if (head_dim <= 4 * kTile) {
    launch_kernel<kBetter, 4>(arguments, stream);
  } else if (head_dim <= 8 * kTile) {
    launch_kernel<kBetter, 8>(arguments, stream);
  } else {
    launch_kernel<kBetter, 16>(arguments, stream);
  }
}
template void launch_mma<false>(const Arguments<Float16>&, Stream);
template void launch_mma<false>(const Arguments<Bfloat16>&, Stream);
template void launch_mma<true>(const Arguments<Float16>&, Stream);
template void launch_mma<true>(const Arguments<Bfloat16>&, Stream);

int64_t mma_product_depth(int64_t head_dim) { return ceil_division(head_dim, kChain * kTile) - 1; }

int64_t mma_tensor_chain() { return kChain; }

}  // namespace nearest_key_search
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
