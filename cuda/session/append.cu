#include "append.hpp"

#include <string>

#include <kvbound/cuda/merging/key_lengths.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "entry_rows.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 64;  // of append_numbers_kernel

// Copies one entry to a slot of a KV head's cache: a warp reads it before the slot is known. Only this block
// reads and changes the head's numbers.
//
// grid       kv_heads
// block      32; no shared memory
// registers  up to 52 (sm_90a), 48 (sm_80)
// bytes      read: 2 padded rows and 24 for each KV head, and a padded row where keys' lengths are kept;
//            written: 2 padded rows and up to 44
// FLOP       3 head_dim for each KV head whose keys' lengths are kept
template <int kDims, Storage T>
__global__ void __launch_bounds__(32)
    append_kernel(NewEntries new_entries, CacheSlots slots, float* key_norms, int head_dim) {
  begin_dependent_launch();
  const int64_t head = blockIdx.x;
  const EntryRows rows(new_entries, head);
  const int64_t entries = slots.entries[head], free = slots.free[head];
  float length = 0;
  if (key_norms) {
    using Lanes = RowLanes<T, kDims>;
    LoadedRow<T, kDims> key[1];
    const auto* const from =
        reinterpret_cast<const T*>(new_entries.keys.from + head * new_entries.keys.from_stride);
    key[0].load(from + Lanes::column(0), Lanes::row() == 0 ? 0 : -1, 0, head_dim);
    length = key_lengths::own_length(key);
  }
  __syncwarp();
  rows.put(slots, free >= 0 ? free : entries, entries, key_norms, length);
}

// grid       ceil(query_heads / 64)
// block      64; no shared memory
// registers  22 (sm_90a and sm_80)
// bytes      read: 12 for each query head; written: 4 for each; no FLOP
__global__ void append_numbers_kernel(const float* numbers, int64_t query_heads, CacheSlots slots,
                                      float* appended) {
  begin_dependent_launch();
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (head >= query_heads) return;
  const int64_t slot = slots.newest[head / (query_heads / slots.kv_heads)];
  if (slot >= 0) appended[head * slots.capacity + slot] = numbers[head];
}

// New rows and the tensor that they go to, with strides in bytes. Checks their shapes.
template <Storage T>
NewRows new_rows(const char* new_name, DeviceTensor<const T> rows, const char* name, DeviceTensor<T> cache,
                 const CacheSlots& slots) {
  require_layout(new_name, rows);
  require_layout(name, cache);
  require_equal(std::string("slices of ") + new_name, rows.slices, "KV heads of the slots", slots.kv_heads);
  require_equal(std::string("columns of ") + new_name, rows.cols, std::string("columns of ") + name,
                cache.cols);
  require_equal(std::string("rows of ") + new_name, rows.rows, "new entries", 1);
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  return {reinterpret_cast<const std::byte*>(rows.data), reinterpret_cast<std::byte*>(cache.data),
          rows.slice_stride * kBytes, cache.slice_stride * kBytes, cache.row_stride * kBytes};
}

}  // namespace

template <Storage T>
NewEntries new_entries(DeviceTensor<const T> new_keys, DeviceTensor<const T> new_values, DeviceTensor<T> keys,
                       DeviceTensor<T> values, const CacheSlots& slots, const int64_t* positions) {
  const CacheView<T> cache{.keys = keys, .values = values, .pages = slots.pages};
  require_pages(cache);
  require_equal("columns of values", values.cols, "columns of keys", keys.cols);
  require_equal("KV heads of the slots", slots.kv_heads, "KV heads of keys", cache.kv_heads());
  require_equal("capacity of the slots", slots.capacity, "capacity of keys", cache.capacity());
  require_range("head_dim", keys.cols, 1, kMostHeadDim);
  return {new_rows("new_keys", new_keys, "keys", keys, slots),
          new_rows("new_values", new_values, "values", values, slots),
          padded<T>(keys.cols) * static_cast<int64_t>(sizeof(T)), positions};
}

template <Storage T>
void append(DeviceTensor<const T> new_keys, DeviceTensor<const T> new_values, DeviceTensor<T> keys,
            DeviceTensor<T> values, const CacheSlots& slots, const int64_t* positions, float* key_norms,
            Stream stream) {
  const NewEntries entries = new_entries<T>(new_keys, new_values, keys, values, slots, positions);
  if (slots.kv_heads == 0) return;
  by_dims(keys.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch_dependent<append_kernel<kDims, T>>({extent(slots.kv_heads), extent(32), 0, stream}, entries, slots,
                                              key_norms, static_cast<int>(keys.cols));
  });
}

template NewEntries new_entries<float>(DeviceTensor<const float>, DeviceTensor<const float>,
                                       DeviceTensor<float>, DeviceTensor<float>, const CacheSlots&,
                                       const int64_t*);
template NewEntries new_entries<Float16>(DeviceTensor<const Float16>, DeviceTensor<const Float16>,
                                         DeviceTensor<Float16>, DeviceTensor<Float16>, const CacheSlots&,
                                         const int64_t*);
template NewEntries new_entries<Bfloat16>(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>,
                                          DeviceTensor<Bfloat16>, DeviceTensor<Bfloat16>, const CacheSlots&,
                                          const int64_t*);
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
  launch_dependent<append_numbers_kernel>(
      {extent(ceil_division(query_heads, kThreads)), extent(kThreads), 0, stream}, numbers, query_heads,
      slots, appended);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
