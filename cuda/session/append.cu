#include "append.hpp"

#include <kvbound/cuda/merging/key_lengths.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 64;

template <Storage T>
struct AppendArguments {
  DeviceTensor<const T> new_keys, new_values;
  DeviceTensor<T> keys, values;
  CacheSlots slots;
  const int64_t* position;
  float* key_norms;
};

// Copies one key and one value to a slot of a KV head's cache: a warp has one, which it reads before the slot
// is known. Only this block reads and changes the head's numbers.
//
// grid       kv_heads
// block      64; no shared memory
// registers  up to 40 (sm_90a and sm_80)
// bytes      read: 2 padded rows and 24 for each KV head; written: 2 padded rows and up to 44
// FLOP       3 head_dim for each KV head whose keys' lengths are kept
template <int kDims, Storage T>
__global__ void __launch_bounds__(kThreads) append_kernel(AppendArguments<T> p) {
  using Lanes = RowLanes<T, kDims>;
  const int64_t head = blockIdx.x;
  const bool is_key = warp() == 0;
  const DeviceTensor<const T>& entry = is_key ? p.new_keys : p.new_values;
  const DeviceTensor<T>& cache = is_key ? p.keys : p.values;
  const T* const from = entry.data + head * entry.slice_stride;
  const auto has = [&](int v) { return Lanes::row() == 0 && Lanes::column(v) < padded<T>(entry.cols); };
  uint4 vectors[Lanes::kVectors] = {};
#pragma unroll
  for (int v = 0; v < Lanes::kVectors; ++v) {
    if (has(v)) vectors[v] = *reinterpret_cast<const uint4*>(from + Lanes::column(v));
  }
  const int64_t entries = p.slots.entries[head], free = p.slots.free[head];
  const int64_t at = p.slots.positions ? *p.position : 0;
  float length = 0;
  if (is_key && p.key_norms) {
    LoadedRow<T, kDims> key[1];
    key[0].load(from + Lanes::column(0), Lanes::row() == 0 ? 0 : -1, 0, static_cast<int>(entry.cols));
    length = key_lengths::own_length(key);
  }
  __syncthreads();
  const int64_t slot = free >= 0 ? free : entries;
  const bool fits = slot < p.slots.capacity;
  T* const to = cache.data + head * cache.slice_stride + slot * cache.row_stride;
#pragma unroll
  for (int v = 0; v < Lanes::kVectors; ++v) {
    if (fits && has(v)) *reinterpret_cast<uint4*>(to + Lanes::column(v)) = vectors[v];
  }
  if (threadIdx.x > 0) return;
  p.slots.newest[head] = fits ? slot : -1;
  if (!fits) return;
  const int64_t place = head * p.slots.capacity + slot;
  if (p.key_norms) p.key_norms[place] = length;
  if (p.slots.positions) p.slots.positions[place] = at;
  if (p.slots.votes) p.slots.votes[place] = 1;
  if (p.slots.log_votes) p.slots.log_votes[place] = 0;
  p.slots.free[head] = -1;
  if (free < 0) p.slots.entries[head] = entries + 1;
}

// grid       ceil(query_heads / 64)
// block      64; no shared memory
// registers  22 (sm_90a and sm_80)
// bytes      read: 12 for each query head; written: 4 for each; no FLOP
__global__ void append_numbers_kernel(const float* numbers, int64_t query_heads, CacheSlots slots,
                                      float* appended) {
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (head >= query_heads) return;
  const int64_t slot = slots.newest[head / (query_heads / slots.kv_heads)];
  if (slot >= 0) appended[head * slots.capacity + slot] = numbers[head];
}

}  // namespace

template <Storage T>
void append(DeviceTensor<const T> new_keys, DeviceTensor<const T> new_values, DeviceTensor<T> keys,
            DeviceTensor<T> values, const CacheSlots& slots, const int64_t* position, float* key_norms,
            Stream stream) {
  require_layout("new_keys", new_keys);
  require_layout("new_values", new_values);
  require_layout("keys", keys);
  require_layout("values", values);
  require_equal("slices of new_keys", new_keys.slices, "slices of keys", keys.slices);
  require_equal("slices of new_values", new_values.slices, "slices of keys", keys.slices);
  require_equal("slices of values", values.slices, "slices of keys", keys.slices);
  require_equal("columns of new_keys", new_keys.cols, "columns of keys", keys.cols);
  require_equal("columns of new_values", new_values.cols, "columns of keys", keys.cols);
  require_equal("columns of values", values.cols, "columns of keys", keys.cols);
  require_range("head_dim", keys.cols, 0, kMostHeadDim);
  require_equal("rows of new_keys", new_keys.rows, "new entries", 1);
  require_equal("rows of new_values", new_values.rows, "new entries", 1);
  require_equal("rows of values", values.rows, "rows of keys", keys.rows);
  require_equal("KV heads of the slots", slots.kv_heads, "slices of keys", keys.slices);
  require_equal("capacity of the slots", slots.capacity, "rows of keys", keys.rows);
  require_range("head_dim", keys.cols, 1, kMostHeadDim);
  if (keys.slices == 0) return;
  by_dims(keys.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch<append_kernel<kDims, T>>(
        {extent(keys.slices), extent(kThreads), 0, stream},
        AppendArguments<T>{new_keys, new_values, keys, values, slots, position, key_norms});
  });
}

template void append<float>(DeviceTensor<const float>, DeviceTensor<const float>, DeviceTensor<float>,
                            DeviceTensor<float>, const CacheSlots&, const int64_t*, float*, Stream);
template void append<Float16>(DeviceTensor<const Float16>, DeviceTensor<const Float16>, DeviceTensor<Float16>,
                              DeviceTensor<Float16>, const CacheSlots&, const int64_t*, float*, Stream);
template void append<Bfloat16>(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>,
                               DeviceTensor<Bfloat16>, DeviceTensor<Bfloat16>, const CacheSlots&,
                               const int64_t*, float*, Stream);

void append_numbers(const float* numbers, int64_t query_heads, const CacheSlots& slots, float* appended,
                    Stream stream) {
  require_groups(query_heads, slots.kv_heads);
  launch<append_numbers_kernel>({extent(ceil_division(query_heads, kThreads)), extent(kThreads), 0, stream},
                                numbers, query_heads, slots, appended);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
