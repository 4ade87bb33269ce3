#include "nearest_key.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "nearest_key_check.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using nearest_key_search::Arguments;
using nearest_key_search::clamped;

constexpr int64_t kMostRows = int64_t{1} << 30;  // searches count in 32 bits

constexpr int kNormThreads = 256;
constexpr int kRowsInFlight = 4;

// The lanes that have a row of keys together, each of them vectors of 16 bytes: r, r + kLanes, ... for the r-th lane.
//
// kDims  head_dim, rounded up to 64, 128 or 256
template <Storage T, int kDims>
struct RowLanes {
  static constexpr int kNumbers = static_cast<int>(kVector<T>);  // of a vector
  static constexpr int kLanes = std::min(32, kDims / kNumbers);
  static constexpr int kVectors = kDims / kNumbers / kLanes;  // of a lane
  static constexpr int kGroups = 32 / kLanes;                 // rows that a warp reads at a time
  static constexpr int kWarpRows = kGroups * kRowsInFlight;
  static constexpr int kRows = kNormThreads / 32 * kWarpRows;  // of a block

  Vector<T> vectors[kVectors];

  __device__ void load(const DeviceTensor<const T>& keys, int64_t g, int64_t row, bool exists) {
    const T* const from = keys.data + g * keys.slice_stride + row * keys.row_stride;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (lane() % kLanes + v * kLanes) * kNumbers;
      vectors[v] = exists && column < keys.cols ? load16(from + column) : Vector<T>{};
    }
  }
  __device__ float largest() const {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kVectors * kNumbers; ++i) {
      most = fmaxf(most, fabsf(vectors[i / kNumbers].values[i % kNumbers]));
    }
    return most;
  }
  // The sum of the squares of this lane's numbers, each multiplied by `scale`.
  __device__ float squares(float scale) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors * kNumbers; ++i) {
      const float scaled = vectors[i / kNumbers].values[i % kNumbers] * scale;
      sum = fmaf(scaled, scaled, sum);
    }
    return sum;
  }
};

// The lengths of keys: 8, 16 or 32 lanes have a row, and four loads are in flight; the warp's lengths are written at once.
// Numbers are multiplied by the power of two that makes the largest one of their row about 1, so that no square overflows,
// nor one that matters underflows.
//
//     lanes  0 .. 15       16 .. 31        head_dim 128 of 16-bit numbers
//            row 0         row 1
//            row 2         row 3
//            row 4         row 5
//            row 6         row 7
//
// grid       (ceil(rows / block's rows), kv_heads): 64 rows for 16-bit types and head_dim 128
// block      256; no shared memory
// registers  32-48 (sm_90a and sm_80)
// bytes      read: head_dim sizeof(T) for each key; written: 4
// FLOP       3 head_dim for each key
template <int kDims, Storage T>
__global__ void __launch_bounds__(kNormThreads)
    key_norms_kernel(DeviceTensor<const T> keys, const int64_t* count, float* norms) {
  using Row = RowLanes<T, kDims>;
  const int64_t g = blockIdx.y, rows = count ? count[g] : keys.rows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Row::kRows + threadIdx.x / 32 * Row::kWarpRows +
                        lane() / Row::kLanes;
  Row row[kRowsInFlight];
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    const int64_t at = first + n * Row::kGroups;
    row[n].load(keys, g, at, at < rows);
  }
  float sum = 0, unit = 0;  // of the row that this lane writes
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    // Exponents 1..253 have an inverse power of two that is normal, too.
    const uint32_t exponent = __float_as_uint(warp_max<Row::kLanes>(row[n].largest())) >> 23;
    const uint32_t within = min(max(exponent, 1U), 253U);
    const float squares = warp_sum<Row::kLanes>(row[n].squares(__uint_as_float((254 - within) << 23)));
    if (lane() % Row::kLanes == n) sum = squares, unit = __uint_as_float(within << 23);
  }
  const int64_t own = first + lane() % Row::kLanes * Row::kGroups;
  if (lane() % Row::kLanes < kRowsInFlight && own < rows) norms[g * keys.rows + own] = sqrtf(sum) * unit;
}

template <int kDims, Storage T>
void launch_key_norms(DeviceTensor<const T> keys, const int64_t* count, float* norms, Stream stream) {
  launch<key_norms_kernel<kDims, T>>(
      {extent(ceil_division(keys.rows, RowLanes<T, kDims>::kRows), keys.slices), extent(kNormThreads), 0,
       stream},
      keys, count, norms);
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

// Whether type, head_dim and device meet the kernel's requirements.
template <Storage T>
bool can(SearchKernel kernel, int64_t head_dim) {
  if (kernel == SearchKernel::wgmma) return sizeof(T) == 2 && nearest_key_search::wgmma_can(head_dim);
  if (kernel == SearchKernel::mma) return sizeof(T) == 2 && device().compute_capability >= 80;
  return true;
}

// The choice for a type and head_dim on the current device, checked on first use.
template <Storage T>
const SearchChoice& known_choice(int64_t head_dim) {
  static std::mutex mutex;
  static std::map<std::pair<const DeviceInfo*, int64_t>, const SearchChoice> known;
  const std::lock_guard lock(mutex);
  const std::pair key(&device(), head_dim);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  if constexpr (sizeof(T) == 2) {
    return known.emplace(key, nearest_key_search::checked_choice<T>(head_dim)).first->second;
  } else {
    return known.emplace(key, SearchChoice{SearchKernel::portable, "no tensor core kernel for F32"})
        .first->second;
  }
}

template <Storage T>
SearchKernel choose(SearchKernel wanted, int64_t head_dim) {
  if (wanted == SearchKernel::chosen) return chosen_search_kernel<T>(head_dim);
  if (can<T>(wanted, head_dim)) return wanted;
  throw ShapeMismatch(std::string(name(dtype_of<T>)) + " keys of head_dim " + std::to_string(head_dim) +
                      " are nothing for the " + (wanted == SearchKernel::mma ? "mma" : "wgmma") +
                      " kernel on a device of compute capability " +
                      std::to_string(device().compute_capability));
}

template <bool kBetter, Storage T>
void search(const Arguments<T>& arguments, SearchKernel kernel, Stream stream) {
  const SearchKernel chosen = choose<T>(kernel, arguments.kept.keys.cols);
  if (arguments.leaving_stride == 0) return;
  if constexpr (Storage16<T>) {
    if (chosen == SearchKernel::wgmma) return nearest_key_search::launch_wgmma<kBetter>(arguments, stream);
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
  if (keys.cols <= 64) return launch_key_norms<64>(keys, count, norms, stream);
  if (keys.cols <= 128) return launch_key_norms<128>(keys, count, norms, stream);
  launch_key_norms<256>(keys, count, norms, stream);
}

template <Storage T>
SearchChoice search_choice(int64_t head_dim) {
  return known_choice<T>(head_dim);
}

template <Storage T>
SearchKernel chosen_search_kernel(int64_t head_dim) {
  return known_choice<T>(head_dim).kernel;
}

KernelArithmetic nearest_keys_arithmetic(int64_t head_dim, SearchKernel kernel) {
  using namespace nearest_key_search;
  KernelArithmetic arithmetic{.precision = Precision::fp32,
                              .product_depth = portable_product_depth(head_dim)};
  if (kernel == SearchKernel::mma) {
    arithmetic.product_depth = mma_product_depth(head_dim);
    arithmetic.tensor_sums = kChainedTensorSums;
    arithmetic.tensor_chain = mma_tensor_chain();
  } else if (kernel == SearchKernel::wgmma) {
    arithmetic.product_depth = 0;
    arithmetic.tensor_sums = kChainedTensorSums;
    arithmetic.tensor_chain = wgmma_tensor_chain(head_dim);
  }
  return arithmetic;
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
template SearchChoice search_choice<float>(int64_t);
template SearchChoice search_choice<Float16>(int64_t);
template SearchChoice search_choice<Bfloat16>(int64_t);
template SearchKernel chosen_search_kernel<float>(int64_t);
template SearchKernel chosen_search_kernel<Float16>(int64_t);
template SearchKernel chosen_search_kernel<Bfloat16>(int64_t);
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
