#include "nearest_key.hpp"

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/eviction/window_tiles.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace window_tiles;

constexpr int kRows = 4;
constexpr int kBlockRows = kRows * kRowLanes;
constexpr int kMostStages = 2;
constexpr int kNormWarps = 4;

// The length of a row. A lane has the numbers l, l + 32, ...; they are divided by the largest one, so that no square
// overflows. The whole warp calls it.
template <Storage T>
__device__ float length(const T* row, int head_dim) {
  float most = 0;
  for (int c = lane(); c < head_dim; c += 32) most = fmaxf(most, fabsf(to_float(row[c])));
  for (int distance = 16; distance > 0; distance /= 2)
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
  if (most == 0) return 0;
  float sum = 0;
  for (int c = lane(); c < head_dim; c += 32) {
    const float share = to_float(row[c]) / most;
    sum += share * share;
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  return most * sqrtf(sum);
}

// The lengths of keys: a warp has one.
//
// grid       (ceil(rows / 4), kv_heads)
// block      128; no shared memory
// registers  31-32 (sm_90a), 30-32 (sm_80)
// bytes      read: head_dim sizeof(T) for each key; written: 4
// FLOP       3 head_dim for each key
template <Storage T>
__global__ void __launch_bounds__(kNormWarps * 32)
    key_norms_kernel(DeviceTensor<const T> keys, const int64_t* count, float* norms) {
  const int64_t g = blockIdx.y, row = static_cast<int64_t>(blockIdx.x) * kNormWarps + warp();
  if (row >= (count ? count[g] : keys.rows)) return;
  const float norm =
      length(keys.data + g * keys.slice_stride + row * keys.row_stride, static_cast<int>(keys.cols));
  if (lane() == 0) norms[g * keys.rows + row] = norm;
}

__device__ float clamped(float cosine) { return fminf(fmaxf(cosine, -1.0f), 1.0f); }

// The nearest key so far.
struct Best {
  float cosine = kNothing;
  int64_t index = -1;

  // Keys are offered by ascending index, so that of equal cosines the first one stays.
  __device__ void offer(float other, int64_t at) {
    if (!(other > cosine)) return;
    cosine = other;
    index = at;
  }
  __device__ void join(const Best& other) {
    const bool better = other.cosine > cosine || (other.cosine == cosine && other.index < index);
    if (other.index < 0 || (index >= 0 && !better)) return;
    *this = other;
  }
};

template <Storage T>
struct Arguments {
  KeyRows<T> all;
  const int64_t* leaving;
  int64_t leaving_stride;
  const int64_t* leaving_count;
  KeyRows<T> kept;
  NearestKeys nearest;
  NumberRows<const float> scores;  // [kv_heads, candidates], where only keys of higher score count

  __device__ int64_t leaving_keys(int64_t g) const {
    return leaving_count ? leaving_count[g] : all.keys.rows;
  }
  __device__ int64_t kept_keys(int64_t g) const { return kept.count ? kept.count[g] : kept.keys.rows; }
  __device__ int64_t row_of(int64_t g, int64_t i) const {
    return leaving ? leaving[g * leaving_stride + i] : i;
  }
  __device__ float score(int64_t g, int64_t i) const { return scores.data[g * scores.row_stride + i]; }
};

struct Shared {
  uint4* tiles;  // [stages, tile] of kept keys
  float* rows;   // [kBlockRows, query_row]: leaving keys, divided by their lengths

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stages * tile_vectors(shape.vectors))),
        rows(memory.array<float>(shape.query_rows * shape.query_row)) {}
};

// Copies the directions of leaving keys first, first + 1, ... to shared memory; zeros behind the last.
template <Storage T>
__device__ void load_directions(const Arguments<T>& p, int64_t g, int64_t first, int count,
                                const Shape& shape, float* rows) {
  const auto head_dim = static_cast<int>(p.all.keys.cols);
  for (int n = static_cast<int>(threadIdx.x); n < kBlockRows * shape.query_row; n += kThreads) {
    const int r = n / shape.query_row, c = n % shape.query_row;
    float number = 0;
    if (r < count && c < head_dim) {
      const int64_t position = p.row_of(g, first + r);
      const float norm = p.all.norms[g * p.all.keys.rows + position];
      const T stored = p.all.keys.data[g * p.all.keys.slice_stride + position * p.all.keys.row_stride + c];
      number = norm > 0 ? to_float(stored) / norm : 0;
    }
    rows[n] = number;
  }
}

// The nearest kept keys of 32 leaving keys of a KV head: the kept keys are read by tiles of 64.
//
// grid       (ceil(most leaving / 32), kv_heads)
// block      128
// shared     1024 stages (v | 1) + 128 (row + 4) bytes, with v vectors of 16 bytes and `row` numbers in a padded row;
//            51,712 for head_dim 128, BF16, 2 stages
// registers  96-128 (sm_90a), 96-124 (sm_80)
// bytes      read: 16 v for each kept key, again for each block, mostly from the L2 cache; head_dim sizeof(T) for each
//            leaving key; written: 12 for each leaving key
// FLOP       2 leaving kept head_dim
template <Storage T, bool kBetter>
__global__ void __launch_bounds__(kThreads, 4) nearest_keys_kernel(Arguments<T> p, Shape shape) {
  SharedMemory memory;
  const Shared shared(memory, shape);
  const int64_t g = blockIdx.y, first = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const auto leaving = static_cast<int>(min(p.leaving_keys(g) - first, int64_t{kBlockRows}));
  if (leaving <= 0) return;
  const int64_t kept = p.kept_keys(g), tiles = ceil_division(kept, kTileTokens);
  const TokenRows rows(p.kept.keys, g);
  const auto load = [&](int64_t tile) {
    if (tile < tiles) {
      const auto count = static_cast<int>(min(kept - tile * kTileTokens, int64_t{kTileTokens}));
      rows.copy_to_tile(tile * kTileTokens, count,
                        shared.tiles + tile % shape.stages * tile_vectors(shape.vectors));
    }
    async_commit();
  };
  load(0);
  load_directions(p, g, first, leaving, shape, shared.rows);
  Best best[kRows];
  float own[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = Products<T, kRows>::row(r);
    own[r] = kBetter && row < leaving ? p.score(g, first + row) : 0;
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (shape.stages == 1 && tile > 0) {
      __syncthreads();  // no thread reads the previous tile any more
      load(tile);
    }
    async_wait<0>();
    __syncthreads();  // all threads see the tile, and with two stages none reads the other any more
    if (shape.stages > 1) load(tile + 1);
    const Products<T, kRows> products(shared.tiles + tile % shape.stages * tile_vectors(shape.vectors),
                                      shared.rows, shape, 1);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int64_t index = tile * kTileTokens + products.token(t);
      if (index >= kept) continue;
      const float norm = p.kept.norms[g * p.kept.keys.rows + index];
      const float score = kBetter ? p.score(g, index) : 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (kBetter && !(score > own[r])) continue;
        best[r].offer(norm > 0 ? clamped(products.numbers[r][t] / norm) : 0, index);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int offset = kTokenLanes / 2; offset > 0; offset /= 2) {
      best[r].join({__shfl_xor_sync(kAllLanes, best[r].cosine, offset),
                    __shfl_xor_sync(kAllLanes, best[r].index, offset)});
    }
    const int row = Products<T, kRows>::row(r);
    if (threadIdx.x % kTokenLanes != 0 || row >= leaving) continue;
    p.nearest.index[g * p.nearest.stride + first + row] = best[r].index;
    p.nearest.cosine[g * p.nearest.stride + first + row] = best[r].index < 0 ? 0 : best[r].cosine;
  }
}

constexpr int kEntryWarps = 16;
constexpr int kEntryThreads = kEntryWarps * 32;

struct EntryShared {
  float* direction;  // [head_dim]
  uint64_t* most;    // [kEntryWarps]
  int64_t* slots;    // [kEntryWarps]
  float* cosines;    // [kEntryWarps]

  __host__ __device__ EntryShared(SharedMemory& memory, int64_t head_dim)
      : direction(memory.array<float>(head_dim)),
        most(memory.array<uint64_t>(kEntryWarps)),
        slots(memory.array<int64_t>(kEntryWarps)),
        cosines(memory.array<float>(kEntryWarps)) {}
};

// The entry of one KV head nearest to the one that was evicted: a warp has one entry at a time.
//
// grid       kv_heads
// block      512
// shared     4 head_dim + 320 bytes
// registers  32-40 (sm_90a), 32 (sm_80)
// bytes      read: head_dim sizeof(T) + 12 for each entry; written: 12 for each KV head
// FLOP       2 head_dim for each entry
template <Storage T>
__global__ void __launch_bounds__(kEntryThreads)
    nearest_key_kernel(KeyRows<T> cache, CacheSlots slots, NearestKeys nearest) {
  SharedMemory memory;
  const auto head_dim = static_cast<int>(cache.keys.cols);
  const EntryShared shared(memory, head_dim);
  const int64_t g = blockIdx.x, evicted = slots.free[g], entries = slots.entries[g];
  const T* keys = cache.keys.data + g * cache.keys.slice_stride;
  const float* norms = cache.norms + g * cache.keys.rows;
  for (int c = static_cast<int>(threadIdx.x); evicted >= 0 && c < head_dim; c += kEntryThreads) {
    const float norm = norms[evicted];
    shared.direction[c] = norm > 0 ? to_float(keys[evicted * cache.keys.row_stride + c]) / norm : 0;
  }
  __syncthreads();
  uint64_t most = 0;
  int64_t at = -1;
  float cosine = 0;
  for (int64_t slot = warp(); evicted >= 0 && slot < entries; slot += kEntryWarps) {
    if (slot == evicted) continue;
    float sum = 0;
    for (int c = lane(); c < head_dim; c += 32) {
      sum += shared.direction[c] * to_float(keys[slot * cache.keys.row_stride + c]);
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    const float near = norms[slot] > 0 ? clamped(sum / norms[slot]) : 0;
    // Larger cosines first, of equal ones the smaller position; no two are equal.
    const uint64_t order = static_cast<uint64_t>(radix_selection::ordered_key(near)) << 32 |
                           (0xffffffffu - static_cast<uint32_t>(slots.positions[g * slots.capacity + slot]));
    if (at >= 0 && order <= most) continue;
    most = order;
    at = slot;
    cosine = near;
  }
  if (lane() == 0) shared.most[warp()] = most, shared.slots[warp()] = at, shared.cosines[warp()] = cosine;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kEntryWarps; ++w) {
    if (shared.slots[w] < 0 || (at >= 0 && shared.most[w] <= most)) continue;
    most = shared.most[w];
    at = shared.slots[w];
    cosine = shared.cosines[w];
  }
  nearest.index[g * nearest.stride] = at;
  nearest.cosine[g * nearest.stride] = cosine;
}

template <bool kBetter, Storage T>
void find_nearest(const Arguments<T>& arguments, int64_t most_leaving, Stream stream) {
  if (most_leaving == 0) return;
  const DeviceTensor<const T>& kept = arguments.kept.keys;
  const auto with = [&](int tiles) { return Shape(kept, tiles, kBlockRows); };
  const Shape shape = first_that_fits<Shared>({with(kMostStages), with(1)});
  launch({extent(ceil_division(most_leaving, kBlockRows), kept.slices), extent(kThreads),
          shared_bytes<Shared>(shape), stream},
         nearest_keys_kernel<T, kBetter>, arguments, shape);
}

template <Storage T>
void require_valid(const KeyRows<T>& rows) {
  require_layout("keys", rows.keys);
  require_range("head_dim", rows.keys.cols, 1, 256);
}

}  // namespace

template <Storage T>
void key_norms(DeviceTensor<const T> keys, const int64_t* count, float* norms, Stream stream) {
  require_layout("keys", keys);
  require_range("head_dim", keys.cols, 1, 256);
  if (keys.rows == 0) return;
  launch({extent(ceil_division(keys.rows, kNormWarps), keys.slices), extent(kNormWarps * 32), 0, stream},
         key_norms_kernel<T>, keys, count, norms);
}

template <Storage T>
void nearest_keys(const KeyRows<T>& all, const int64_t* leaving, int64_t leaving_stride,
                  const int64_t* leaving_count, const KeyRows<T>& kept, const NearestKeys& nearest,
                  Stream stream) {
  require_valid(all);
  require_valid(kept);
  require_equal("slices of the kept keys", kept.keys.slices, "slices of all keys", all.keys.slices);
  require_equal("columns of the kept keys", kept.keys.cols, "columns of all keys", all.keys.cols);
  require_range("leaving_stride", leaving_stride, 0, all.keys.rows);
  require_range("stride of the nearest keys", nearest.stride, leaving_stride, INT64_MAX);
  find_nearest<false>(Arguments<T>{all, leaving, leaving_stride, leaving_count, kept, nearest, {}},
                      leaving_stride, stream);
}

template <Storage T>
void nearest_better_keys(const KeyRows<T>& candidates, NumberRows<const float> scores,
                         const NearestKeys& nearest, Stream stream) {
  require_valid(candidates);
  require_equal("rows of scores", scores.rows, "slices of the candidates' keys", candidates.keys.slices);
  require_range("stride of the nearest keys", nearest.stride, candidates.keys.rows, INT64_MAX);
  const int64_t count = candidates.keys.rows;
  find_nearest<true>(Arguments<T>{candidates, nullptr, count, nullptr, candidates, nearest, scores}, count,
                     stream);
}

template <Storage T>
void nearest_key(const KeyRows<T>& cache, const CacheSlots& slots, const NearestKeys& nearest,
                 Stream stream) {
  require_valid(cache);
  require_equal("KV heads of the slots", slots.kv_heads, "slices of keys", cache.keys.slices);
  require_equal("capacity of the slots", slots.capacity, "rows of keys", cache.keys.rows);
  launch({extent(slots.kv_heads), extent(kEntryThreads), shared_bytes<EntryShared>(cache.keys.cols), stream},
         nearest_key_kernel<T>, cache, slots, nearest);
}

template void key_norms(DeviceTensor<const float>, const int64_t*, float*, Stream);
template void key_norms(DeviceTensor<const Float16>, const int64_t*, float*, Stream);
template void key_norms(DeviceTensor<const Bfloat16>, const int64_t*, float*, Stream);
template void nearest_keys(const KeyRows<float>&, const int64_t*, int64_t, const int64_t*,
                           const KeyRows<float>&, const NearestKeys&, Stream);
template void nearest_keys(const KeyRows<Float16>&, const int64_t*, int64_t, const int64_t*,
                           const KeyRows<Float16>&, const NearestKeys&, Stream);
template void nearest_keys(const KeyRows<Bfloat16>&, const int64_t*, int64_t, const int64_t*,
                           const KeyRows<Bfloat16>&, const NearestKeys&, Stream);
template void nearest_better_keys(const KeyRows<float>&, NumberRows<const float>, const NearestKeys&, Stream);
template void nearest_better_keys(const KeyRows<Float16>&, NumberRows<const float>, const NearestKeys&,
                                  Stream);
template void nearest_better_keys(const KeyRows<Bfloat16>&, NumberRows<const float>, const NearestKeys&,
                                  Stream);
template void nearest_key(const KeyRows<float>&, const CacheSlots&, const NearestKeys&, Stream);
template void nearest_key(const KeyRows<Float16>&, const CacheSlots&, const NearestKeys&, Stream);
template void nearest_key(const KeyRows<Bfloat16>&, const CacheSlots&, const NearestKeys&, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
