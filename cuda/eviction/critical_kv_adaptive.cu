// CriticalKV's adaptive first stage: the fewest candidates with which every window query of a KV head's group
// has more than half of its attention on kept entries.
//
// Entries are ordered: first those that are always kept, then the candidates, best first. For each query the
// kernels find the entry at which the prefix sum of attention weights first exceeds 1/2:
//
//       entries      | tile 0 | tile 1 | ... | tile c | ... |   tile_masses_kernel: m, a tile's weight
//       prefix sum   0       m0   m0 + m1  <= 1/2  > 1/2        needed_kernel: tile c, and the entry in it
//
// most_needed_kernel takes the maximum over the queries of a group.
#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/window/window_tiles.hpp>

#include "critical_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kTile = 256;  // entries, one per thread
constexpr int kWarps = kTile / 32;
constexpr int kQueries = 8;  // queries that share one read of a key

template <Storage T>
struct Arguments {
  WindowView<T> window;
  const float* log_sum_exp;
  int64_t sinks, always_kept;  // the first entries, of which the sinks come first
  const int64_t* ranked;
  int64_t ranked_stride;
  const int64_t* k;
  int64_t* count;
  int64_t pitch;  // numbers in a row of queries or keys, padding included
  int64_t tiles;
  float* masses;    // [query_heads, window, tiles]: sums of weights
  int64_t* needed;  // [query_heads, window]

  __device__ int64_t queries() const { return window.queries.rows; }
  __device__ int64_t tokens() const { return window.keys.rows; }
  __device__ int64_t group_size() const { return window.queries.slices / window.keys.slices; }

  // The position of KV head g's entry, -1 behind the last entry.
  __device__ int64_t position(int64_t g, int64_t entry) const {
    if (entry < sinks) return entry;
    if (entry < always_kept) return tokens() - always_kept + entry;
    return entry < always_kept + k[g] ? ranked[g * ranked_stride + entry - always_kept] : -1;
  }
};

struct Shared {
  float* queries;      // [kQueries, pitch]
  float* warp_totals;  // [kQueries, kWarps]
  float* prefixes;     // [kTile]
  int* firsts;         // [kWarps]

  __host__ __device__ Shared(SharedMemory& memory, int64_t pitch)
      : queries(memory.array<float>(kQueries * pitch)),
        warp_totals(memory.array<float>(kQueries * kWarps)),
        prefixes(memory.array<float>(kTile)),
        firsts(memory.array<int>(kWarps)) {}
};

// Loads queries first..first + kCount - 1 of a query head, padding included; zeros behind the last query.
template <int kCount, Storage T>
__device__ void load_queries(const Arguments<T>& p, int64_t head, int64_t first, float* shared) {
  const DeviceTensor<const T>& queries = p.window.queries;
  for (int64_t n = threadIdx.x; n < kCount * p.pitch; n += kTile) {
    const int64_t i = first + n / p.pitch;
    shared[n] =
        i < queries.rows
            ? to_float(queries.data[head * queries.slice_stride + i * queries.row_stride + n % p.pitch])
            : 0.0f;
  }
}

// The attention weights of kCount queries on one position; 0 for a position of -1 or in a query's future.
template <int kCount, Storage T>
__device__ void attention_weights(const Arguments<T>& p, const float* queries, int64_t head, int64_t first,
                                  int64_t position, float (&weights)[kCount]) {
#pragma unroll
  for (int q = 0; q < kCount; ++q) weights[q] = 0;
  if (position < 0) return;
  const DeviceTensor<const T>& keys = p.window.keys;
  const T* key = keys.data + head / p.group_size() * keys.slice_stride + position * keys.row_stride;
  for (int64_t dim = 0; dim < p.pitch; dim += kVector<T>) {
    const Vector<T> vector = load16(key + dim);
#pragma unroll
    for (int n = 0; n < kVector<T>; ++n) {
#pragma unroll
      for (int q = 0; q < kCount; ++q) weights[q] += queries[q * p.pitch + dim + n] * vector.values[n];
    }
  }
  const auto scale = static_cast<float>(p.window.scale);
#pragma unroll
  for (int q = 0; q < kCount; ++q) {
    const int64_t i = first + q;
    const bool visible = i < p.queries() && position <= p.tokens() - p.queries() + i;
    weights[q] = visible ? expf(scale * weights[q] - p.log_sum_exp[head * p.queries() + i]) : 0.0f;
  }
}

// Inclusive prefix sums over the block's threads, in a fixed order. All threads call it.
template <int kCount>
__device__ void prefix_sums(float (&numbers)[kCount], float* warp_totals) {
  __syncthreads();  // other threads may still read the previous call's totals
#pragma unroll
  for (int q = 0; q < kCount; ++q) {
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = __shfl_up_sync(kAllLanes, numbers[q], static_cast<unsigned>(distance));
      if (lane() >= distance) numbers[q] += other;
    }
    if (lane() == 31) warp_totals[q * kWarps + warp()] = numbers[q];
  }
  __syncthreads();
#pragma unroll
  for (int q = 0; q < kCount; ++q) {
    float before = 0;
    for (int w = 0; w < warp(); ++w) before += warp_totals[q * kWarps + w];
    numbers[q] += before;
  }
}

// The sums of attention weights of one tile of 256 entries, for the window's queries of one query head. A
// thread has one entry, and eight queries at a time.
//
// grid       (tiles, query_heads), tiles = ceil((always_kept + min(ranked_stride, tokens)) / 256)
// block      256
// shared     32 pitch + 1,312 bytes, pitch = numbers in a padded row; 5,408 for head_dim 128 in a 16-bit type
// registers  sm_90a: 96 (16-bit types), 80 (fp32); sm_80: 92
// bytes      read: the entries' keys for each query head, again for every eight queries; queries and
//            log-sum-exp for each block; written: 4 query_heads window tiles
// FLOP       2 query_heads window entries pitch, and an exponential for each product;
//            entries = always_kept + k
template <Storage T>
__global__ void __launch_bounds__(kTile, 1) tile_masses_kernel(Arguments<T> p) {
  SharedMemory memory;
  const Shared shared(memory, p.pitch);
  const int64_t tile = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int64_t position = p.position(head / p.group_size(), tile * kTile + threadIdx.x);
  for (int64_t first = 0; first < p.queries(); first += kQueries) {
    __syncthreads();
    load_queries<kQueries>(p, head, first, shared.queries);
    __syncthreads();
    float weights[kQueries];
    attention_weights(p, shared.queries, head, first, position, weights);
    prefix_sums(weights, shared.warp_totals);
    if (threadIdx.x != kTile - 1) continue;
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      const int64_t i = first + q;
      if (i < p.queries()) p.masses[(head * p.queries() + i) * p.tiles + tile] = weights[q];
    }
  }
}

// The number of the first thread that passes true; kTile if none does. All threads call it.
__device__ int first_where(bool so, int* firsts) {
  const unsigned lanes = __ballot_sync(kAllLanes, so);
  __syncthreads();
  if (lane() == 0) firsts[warp()] = lanes ? warp() * 32 + __ffs(static_cast<int>(lanes)) - 1 : kTile;
  __syncthreads();
  int first = kTile;
  for (int w = 0; w < kWarps; ++w) first = min(first, firsts[w]);
  return first;
}

// The tile in which a query's prefix sum first exceeds 1/2, and the sum before that tile.
struct Crossing {
  int64_t tile;  // -1: the sum of all tiles is at most 1/2
  float before;
};

__device__ Crossing crossing_tile(const float* masses, int64_t tiles, const Shared& shared) {
  float before = 0;
  for (int64_t first = 0; first < tiles; first += kTile) {
    const int64_t tile = first + threadIdx.x;
    float sum[1] = {tile < tiles ? masses[tile] : 0.0f};
    prefix_sums(sum, shared.warp_totals);
    shared.prefixes[threadIdx.x] = before + sum[0];
    const int found = first_where(before + sum[0] > 0.5f, shared.firsts);
    if (found < kTile) return {first + found, found > 0 ? shared.prefixes[found - 1] : before};
    before = shared.prefixes[kTile - 1];
  }
  return {-1, before};
}

// The candidates that one query needs: scans its tiles' sums 256 at a time, then forms the weights of the
// crossing tile again and scans them, one entry to a thread.
//
// grid       (window, query_heads)
// block      256
// shared     as tile_masses_kernel
// registers  sm_90a: 48 (16-bit types), 112 (fp32); sm_80: 50, 112
// bytes      read: 4 tiles and 256 keys for each query; written: 8 for each query
// FLOP       512 pitch for each query, and 256 exponentials
template <Storage T>
__global__ void __launch_bounds__(kTile, 1) needed_kernel(Arguments<T> p) {
  SharedMemory memory;
  const Shared shared(memory, p.pitch);
  const int64_t i = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int64_t g = head / p.group_size();
  const int64_t row = head * p.queries() + i;
  const Crossing crossing = crossing_tile(p.masses + row * p.tiles, p.tiles, shared);
  int64_t needed = p.k[g];
  if (crossing.tile >= 0) {
    load_queries<1>(p, head, i, shared.queries);
    __syncthreads();
    float weight[1];
    attention_weights(p, shared.queries, head, i, p.position(g, crossing.tile * kTile + threadIdx.x), weight);
    prefix_sums(weight, shared.warp_totals);
    const int found = first_where(crossing.before + weight[0] > 0.5f, shared.firsts);
    const int64_t entries = crossing.tile * kTile + min(found + 1, kTile);
    needed = min(max(entries - p.always_kept, int64_t{0}), needed);
  }
  if (threadIdx.x == 0) p.needed[row] = needed;
}

// The maximum over the window's queries of a KV head's group.
//
// grid       kv_heads
// block      32; no shared memory
// registers  50 (sm_90a and sm_80)
// bytes      read: 8 query_heads window; written: 8 kv_heads; no FLOP
template <Storage T>
__global__ void __launch_bounds__(32) most_needed_kernel(Arguments<T> p) {
  const int64_t rows = p.group_size() * p.queries();
  const int64_t* needed = p.needed + blockIdx.x * rows;
  int64_t most = 0;
  for (int64_t row = threadIdx.x; row < rows; row += 32) most = max(most, needed[row]);
  most = warp_max(most);
  if (threadIdx.x == 0) p.count[blockIdx.x] = most;
}

int64_t tiles_of(int64_t entries) { return ceil_division(entries, kTile); }

}  // namespace

int64_t adaptive_stage_one_workspace(int64_t query_heads, int64_t window, int64_t tokens) {
  // The always kept and the ranked entries may each be all positions.
  return query_heads * window *
         (static_cast<int64_t>(sizeof(int64_t)) + tiles_of(2 * tokens) * static_cast<int64_t>(sizeof(float)));
}

template <Storage T>
void adaptive_stage_one(const WindowView<T>& window, const float* log_sum_exp, const AlwaysKept& always,
                        const int64_t* ranked, int64_t ranked_stride, const int64_t* k, int64_t* count,
                        Workspace workspace, Stream stream) {
  const DeviceTensor<const T>& queries = window.queries;
  const DeviceTensor<const T>& keys = window.keys;
  require_window(window, 0);
  require_range("sinks", always.sinks, 0, keys.rows);
  require_range("recent entries", always.recent, 0, keys.rows - always.sinks);
  require_workspace(workspace, adaptive_stage_one_workspace(queries.slices, queries.rows, keys.rows));
  const int64_t rows = queries.slices * queries.rows;
  auto* needed = static_cast<int64_t*>(workspace.data);
  const int64_t tiles = tiles_of(always.entries() + std::min(ranked_stride, keys.rows));
  const Arguments<T> arguments{window,
                               log_sum_exp,
                               always.sinks,
                               always.entries(),
                               ranked,
                               ranked_stride,
                               k,
                               count,
                               padded<T>(keys.cols),
                               tiles,
                               reinterpret_cast<float*>(needed + rows),
                               needed};
  const int64_t shared = shared_bytes<Shared>(padded<T>(keys.cols));
  if (tiles > 0 && rows > 0) {
    launch<tile_masses_kernel<T>>({extent(tiles, queries.slices), extent(kTile), shared, stream}, arguments);
  }
  if (rows > 0) {
    launch<needed_kernel<T>>({extent(queries.rows, queries.slices), extent(kTile), shared, stream},
                             arguments);
  }
  launch<most_needed_kernel<T>>({extent(keys.slices), extent(32), 0, stream}, arguments);
}

template void adaptive_stage_one(const WindowView<float>&, const float*, const AlwaysKept&, const int64_t*,
                                 int64_t, const int64_t*, int64_t*, Workspace, Stream);
template void adaptive_stage_one(const WindowView<Float16>&, const float*, const AlwaysKept&, const int64_t*,
                                 int64_t, const int64_t*, int64_t*, Workspace, Stream);
template void adaptive_stage_one(const WindowView<Bfloat16>&, const float*, const AlwaysKept&, const int64_t*,
                                 int64_t, const int64_t*, int64_t*, Workspace, Stream);

// A tile's prefix sums add 32 lanes by a tree of depth 5, then up to 8 warps. The tiles' sums are added
// likewise, 256 at a time; one addition joins the two.
int64_t adaptive_stage_one_depth(int64_t entries) {
  constexpr int64_t kPrefix = 5 + kWarps;
  return kPrefix + kPrefix + tiles_of(tiles_of(entries)) + 1;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
