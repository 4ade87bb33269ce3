#include "append.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kMostVectors = kMostHeadDim * sizeof(float) / 16;  // of 16 bytes, that a row has
constexpr int kThreads = 2 * kMostVectors;

// Copies one key and one value to a slot of a KV head's cache: thread t has vector t % 64 of the key, or from thread 64 on of the
// value, and reads it before the slot is known. Only this block reads and changes the head's numbers.
//
// grid       kv_heads
// block      128; no shared memory
// registers  28 (sm_90a), 26 (sm_80)
// bytes      read: 2 padded rows and 24 for each KV head; written: 2 padded rows and up to 40; no FLOP
template <Storage T>
__global__ void __launch_bounds__(kThreads)
    append_kernel(DeviceTensor<const T> new_keys, DeviceTensor<const T> new_values, DeviceTensor<T> keys,
                  DeviceTensor<T> values, CacheSlots slots, const int64_t* position) {
  const int64_t head = blockIdx.x;
  const int vector = static_cast<int>(threadIdx.x) % kMostVectors;
  const bool is_key = threadIdx.x < kMostVectors, exists = vector < padded<T>(keys.cols) / kVector<T>;
  const T* const from = is_key ? new_keys.data + head * new_keys.slice_stride
                               : new_values.data + head * new_values.slice_stride;
  uint4 numbers{};
  if (exists) numbers = reinterpret_cast<const uint4*>(from)[vector];
  const int64_t entries = slots.entries[head], free = slots.free[head];
  const int64_t at = slots.positions ? *position : 0;
  __syncthreads();
  const int64_t slot = free >= 0 ? free : entries;
  const bool fits = slot < slots.capacity;
  if (fits && exists) {
    T* const to = is_key ? keys.data + head * keys.slice_stride + slot * keys.row_stride
                         : values.data + head * values.slice_stride + slot * values.row_stride;
    reinterpret_cast<uint4*>(to)[vector] = numbers;
  }
  if (threadIdx.x > 0) return;
  slots.newest[head] = fits ? slot : -1;
  if (!fits) return;
  const int64_t place = head * slots.capacity + slot;
  if (slots.positions) slots.positions[place] = at;
  if (slots.votes) slots.votes[place] = 1;
  if (slots.log_votes) slots.log_votes[place] = 0;
  slots.free[head] = -1;
  if (free < 0) slots.entries[head] = entries + 1;
}

// grid       ceil(query_heads / 128)
// block      128; no shared memory
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
  require_range("head_dim", keys.cols, 0, kMostHeadDim);
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
