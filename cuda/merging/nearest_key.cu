#include "nearest_key.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "key_lengths.hpp"
#include "nearest_key_check.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using nearest_key_search::Arguments;
using nearest_key_search::require_valid;

constexpr int kNormThreads = 256;
constexpr int kNormWarps = kNormThreads / 32;

// The lengths of keys: 8, 16 or 32 lanes have a row, and four loads are in flight; the warp's
// lengths are written at once.
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
__global__ void __launch_bounds__(kNormThreads, 5)
    key_norms_kernel(DeviceTensor<const T> keys, const int64_t* count, float* norms) {
  using Lanes = RowLanes<T, kDims>;
  const int64_t g = blockIdx.y;
  const auto rows = static_cast<int>(count ? count[g] : keys.rows);
  const int first = (static_cast<int>(blockIdx.x) * kNormWarps + warp()) * Lanes::kWarpRows + Lanes::row();
  const T* const lanes = keys.data + g * keys.slice_stride + Lanes::column(0);
  LoadedRow<T, kDims> row[kRowsInFlight];
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    const int at = first + n * Lanes::kRowsAtOnce;
    row[n].load(lanes, at < rows ? at : -1, static_cast<uint32_t>(keys.row_stride),
                static_cast<int>(keys.cols));
  }
  const float length = key_lengths::own_length(row);
  const int own = first + Lanes::lane_in_row() * Lanes::kRowsAtOnce;
  if (Lanes::lane_in_row() < kRowsInFlight && own < rows) norms[g * keys.rows + own] = length;
}

template <int kDims, Storage T>
void launch_key_norms(DeviceTensor<const T> keys, const int64_t* count, float* norms, Stream stream) {
  constexpr int64_t kBlockRows = kNormWarps * RowLanes<T, kDims>::kWarpRows;
  launch<key_norms_kernel<kDims, T>>(
      {extent(ceil_division(keys.rows, kBlockRows), keys.slices), extent(kNormThreads), 0, stream}, keys,
      count, norms);
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
  require_valid(keys);
  if (keys.rows == 0) return;
  by_dims(keys.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch_key_norms<kDims>(keys, count, norms, stream);
  });
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
  require_valid(all.keys);
  require_valid(kept.keys);
  require_equal("slices of the kept keys", kept.keys.slices, "slices of all keys", all.keys.slices);
  require_equal("columns of the kept keys", kept.keys.cols, "columns of all keys", all.keys.cols);
  require_range("leaving_stride", leaving_stride, 0, all.keys.rows);
  require_range("stride of the nearest keys", nearest.stride, leaving_stride, INT64_MAX);
  search<false>(Arguments<T>{all, leaving, leaving_stride, leaving_count, kept, nearest, {}}, kernel, stream);
}

template <Storage T>
void nearest_better_keys(const KeyRows<T>& candidates, NumberRows<const float> scores,
                         const NearestKeys& nearest, Stream stream, SearchKernel kernel) {
  require_valid(candidates.keys);
  require_equal("rows of scores", scores.rows, "slices of the candidates' keys", candidates.keys.slices);
  require_range("stride of the nearest keys", nearest.stride, candidates.keys.rows, INT64_MAX);
  const int64_t count = candidates.keys.rows;
  search<true>(Arguments<T>{candidates, nullptr, count, nullptr, candidates, nearest, scores}, kernel,
               stream);
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

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
