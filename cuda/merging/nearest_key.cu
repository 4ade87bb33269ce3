#include "nearest_key.hpp"

#include <string>

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "nearest_key_search.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using nearest_key_search::Arguments;
using nearest_key_search::clamped;

constexpr int kNormWarps = 4;
constexpr int64_t kMostRows = int64_t{1} << 30;  // searches count in 32 bits

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

template <Storage T>
void require_valid(const KeyRows<T>& rows) {
  require_layout("keys", rows.keys);
  require_range("head_dim", rows.keys.cols, 1, 256);
  require_range("rows of keys", rows.keys.rows, 0, kMostRows);
}

template <Storage T>
SearchKernel choose(SearchKernel wanted) {
  const SearchKernel best = chosen_search_kernel<T>();
  if (wanted == SearchKernel::chosen || wanted == best) return best;
  if (wanted == SearchKernel::portable) return wanted;
  throw ShapeMismatch(std::string(name(dtype_of<T>)) +
                      " keys are nothing for the mma kernel on a device of compute capability " +
                      std::to_string(device().compute_capability));
}

template <bool kBetter, Storage T>
void search(const Arguments<T>& arguments, SearchKernel kernel, Stream stream) {
  const SearchKernel chosen = choose<T>(kernel);
  if (arguments.leaving_stride == 0) return;
  if constexpr (Storage16<T>) {
    if (chosen == SearchKernel::mma) return nearest_key_search::launch_mma<kBetter>(arguments, stream);
  }
  nearest_key_search::launch_portable<kBetter>(arguments, stream);
}

}  // namespace

template <Storage T>
void key_norms(DeviceTensor<const T> keys, const int64_t* count, float* norms, Stream stream) {
  require_layout("keys", keys);
  require_range("head_dim", keys.cols, 1, 256);
  if (keys.rows == 0) return;
  launch<key_norms_kernel<T>>(
      {extent(ceil_division(keys.rows, kNormWarps), keys.slices), extent(kNormWarps * 32), 0, stream}, keys,
      count, norms);
}

template <Storage T>
SearchKernel chosen_search_kernel() {
  const bool can = Storage16<T> && device().compute_capability >= 80;
  return can ? SearchKernel::mma : SearchKernel::portable;
}

KernelArithmetic nearest_keys_arithmetic(int64_t head_dim, SearchKernel kernel) {
  const bool mma = kernel == SearchKernel::mma;
  return {.precision = Precision::fp32,
          .product_depth = mma ? nearest_key_search::mma_product_depth(head_dim)
                               : nearest_key_search::portable_product_depth(head_dim),
          .tensor_sums = mma ? kTensorSums : 0};
}

template <Storage T>
void nearest_keys(const KeyRows<T>& all, const int64_t* leaving, int64_t leaving_stride,
                  const int64_t* leaving_count, const KeyRows<T>& kept, const NearestKeys& nearest,
                  Stream stream, SearchKernel kernel) {
  require_valid(all);
  require_valid(kept);
  require_equal("slices of the kept keys", kept.keys.slices, "slices of all keys", all.keys.slices);
  require_equal("columns of the kept keys", kept.keys.cols, "columns of all keys", all.keys.cols);
  require_range("leaving_stride", leaving_stride, 0, all.keys.rows);
  require_range("stride of the nearest keys", nearest.stride, leaving_stride, INT64_MAX);
  search<false>(Arguments<T>{all, leaving, leaving_stride, leaving_count, kept, nearest, {}}, kernel, stream);
}

template <Storage T>
void nearest_better_keys(const KeyRows<T>& candidates, NumberRows<const float> scores,
                         const NearestKeys& nearest, Stream stream, SearchKernel kernel) {
  require_valid(candidates);
  require_equal("rows of scores", scores.rows, "slices of the candidates' keys", candidates.keys.slices);
  require_range("stride of the nearest keys", nearest.stride, candidates.keys.rows, INT64_MAX);
  const int64_t count = candidates.keys.rows;
  search<true>(Arguments<T>{candidates, nullptr, count, nullptr, candidates, nearest, scores}, kernel,
               stream);
}

template <Storage T>
void nearest_key(const KeyRows<T>& cache, const CacheSlots& slots, const NearestKeys& nearest,
                 Stream stream) {
  require_valid(cache);
  require_equal("KV heads of the slots", slots.kv_heads, "slices of keys", cache.keys.slices);
  require_equal("capacity of the slots", slots.capacity, "rows of keys", cache.keys.rows);
  launch<nearest_key_kernel<T>>(
      {extent(slots.kv_heads), extent(kEntryThreads), shared_bytes<EntryShared>(cache.keys.cols), stream},
      cache, slots, nearest);
}

template void key_norms(DeviceTensor<const float>, const int64_t*, float*, Stream);
template void key_norms(DeviceTensor<const Float16>, const int64_t*, float*, Stream);
template void key_norms(DeviceTensor<const Bfloat16>, const int64_t*, float*, Stream);
template SearchKernel chosen_search_kernel<float>();
template SearchKernel chosen_search_kernel<Float16>();
template SearchKernel chosen_search_kernel<Bfloat16>();
template void nearest_keys(const KeyRows<float>&, const int64_t*, int64_t, const int64_t*,
                           const KeyRows<float>&, const NearestKeys&, Stream, SearchKernel);
template void nearest_keys(const KeyRows<Float16>&, const int64_t*, int64_t, const int64_t*,
                           const KeyRows<Float16>&, const NearestKeys&, Stream, SearchKernel);
template void nearest_keys(const KeyRows<Bfloat16>&, const int64_t*, int64_t, const int64_t*,
                           const KeyRows<Bfloat16>&, const NearestKeys&, Stream, SearchKernel);
template void nearest_better_keys(const KeyRows<float>&, NumberRows<const float>, const NearestKeys&, Stream,
                                  SearchKernel);
template void nearest_better_keys(const KeyRows<Float16>&, NumberRows<const float>, const NearestKeys&,
                                  Stream, SearchKernel);
template void nearest_better_keys(const KeyRows<Bfloat16>&, NumberRows<const float>, const NearestKeys&,
                                  Stream, SearchKernel);
template void nearest_key(const KeyRows<float>&, const CacheSlots&, const NearestKeys&, Stream);
template void nearest_key(const KeyRows<Float16>&, const CacheSlots&, const NearestKeys&, Stream);
template void nearest_key(const KeyRows<Bfloat16>&, const CacheSlots&, const NearestKeys&, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
