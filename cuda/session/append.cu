#include "append.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 64;

// Copies one key and one value to a slot of a KV head's cache. Only this block reads and changes the head's numbers.
//
// grid       kv_heads
// block      64; no shared memory
// registers  28 (sm_90a), 32 (sm_80)
// bytes      read: 2 padded rows and 16 for each KV head; written: 2 padded rows and up to 40; no FLOP
template <Storage T>
__global__ void append_kernel(DeviceTensor<const T> new_keys, DeviceTensor<const T> new_values,
                              DeviceTensor<T> keys, DeviceTensor<T> values, CacheSlots slots,
                              const int64_t* position) {
  const int64_t head = blockIdx.x;
  const int64_t entries = slots.entries[head];
  const int64_t free = slots.free[head];
  __syncthreads();
  const int64_t slot = free >= 0 ? free : entries;
  const bool fits = slot < slots.capacity;
  for (int64_t c = threadIdx.x; fits && c < padded<T>(keys.cols); c += kThreads) {
    keys.data[head * keys.slice_stride + slot * keys.row_stride + c] =
        new_keys.data[head * new_keys.slice_stride + c];
    values.data[head * values.slice_stride + slot * values.row_stride + c] =
        new_values.data[head * new_values.slice_stride + c];
  }
  if (threadIdx.x > 0) return;
  slots.newest[head] = fits ? slot : -1;
  if (!fits) return;
  const int64_t place = head * slots.capacity + slot;
  if (slots.positions) slots.positions[place] = *position;
  if (slots.votes) slots.votes[place] = 1;
  if (slots.log_votes) slots.log_votes[place] = 0;
  slots.free[head] = -1;
  if (free < 0) slots.entries[head] = entries + 1;
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
            DeviceTensor<T> values, const CacheSlots& slots, const int64_t* position, Stream stream) {
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
  require_equal("rows of new_keys", new_keys.rows, "new entries", 1);
  require_equal("rows of new_values", new_values.rows, "new entries", 1);
  require_equal("rows of values", values.rows, "rows of keys", keys.rows);
  require_equal("KV heads of the slots", slots.kv_heads, "slices of keys", keys.slices);
  require_equal("capacity of the slots", slots.capacity, "rows of keys", keys.rows);
  if (keys.slices == 0) return;
  launch<append_kernel<T>>(LaunchShape{dim3(static_cast<unsigned>(keys.slices)), dim3(kThreads), 0, stream},
                           new_keys, new_values, keys, values, slots, position);
}

template void append<float>(DeviceTensor<const float>, DeviceTensor<const float>, DeviceTensor<float>,
                            DeviceTensor<float>, const CacheSlots&, const int64_t*, Stream);
template void append<Float16>(DeviceTensor<const Float16>, DeviceTensor<const Float16>, DeviceTensor<Float16>,
                              DeviceTensor<Float16>, const CacheSlots&, const int64_t*, Stream);
template void append<Bfloat16>(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>,
                               DeviceTensor<Bfloat16>, DeviceTensor<Bfloat16>, const CacheSlots&,
                               const int64_t*, Stream);

void append_numbers(const float* numbers, int64_t query_heads, const CacheSlots& slots, float* appended,
                    Stream stream) {
  require_groups(query_heads, slots.kv_heads);
  launch<append_numbers_kernel>({extent(ceil_division(query_heads, kThreads)), extent(kThreads), 0, stream},
                                numbers, query_heads, slots, appended);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
