// What the kernels of the search for nearest keys share: arguments, the nearest key so far, launches.
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "nearest_key.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace nearest_key_search {

inline constexpr int64_t kMostRows = int64_t{1} << 30;  // kernels count in 32 bits

template <Storage T>
void require_valid(const DeviceTensor<const T>& keys) {
  require_layout("keys", keys);
  require_range("head_dim", keys.cols, 1, 256);
  require_range("rows of keys", keys.rows, 0, kMostRows);
  require_range("row_stride of keys", keys.row_stride, 0, INT32_MAX);
}

template <Storage T>
struct Arguments {
  KeyRows<T> all;
  const int64_t* leaving;  ///< null: all rows of `all`
  int64_t leaving_stride;
  const int64_t* leaving_count;
  KeyRows<T> kept;
  NearestKeys nearest;
  NumberRows<const float> scores;  ///< [kv_heads, candidates], where only keys of higher score count

  __device__ int64_t leaving_keys(int64_t g) const {
    return leaving_count ? leaving_count[g] : all.keys.rows;
  }
  __device__ int64_t kept_keys(int64_t g) const { return kept.count ? kept.count[g] : kept.keys.rows; }
  __device__ int64_t row_of(int64_t g, int64_t i) const {
    return leaving ? leaving[g * leaving_stride + i] : i;
  }
  __device__ float score(int64_t g, int64_t i) const { return scores.data[g * scores.row_stride + i]; }

  __device__ void write(int64_t g, int64_t i, int64_t index, float cosine) const {
    nearest.index[g * nearest.stride + i] = index;
    nearest.cosine[g * nearest.stride + i] = index < 0 ? 0 : cosine;
  }
};

#if !defined(KVBOUND_CUDA_NATIVE) || defined(__CUDACC__)  // for kernels

__device__ inline float clamped(float cosine) { return fminf(fmaxf(cosine, -1.0f), 1.0f); }

/// The nearest key so far.
struct Best {
  float cosine = kNothing;
  int index = -1;

  /// Keys are offered by ascending index, so that of equal cosines the first one stays; NaN is no key.
  __device__ void offer(float other, int at) {
    if (!(other > cosine)) return;
    cosine = other;
    index = at;
  }
  __device__ void join(const Best& other) {
    const bool better = other.cosine > cosine || (other.cosine == cosine && other.index < index);
    if (other.index < 0 || (index >= 0 && !better)) return;
    *this = other;
  }
  /// Joins the keys of `lanes` neighbouring lanes, a power of two: all of them have the nearest one.
  __device__ void join_lanes(int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      join({__shfl_xor_sync(kAllLanes, cosine, distance), __shfl_xor_sync(kAllLanes, index, distance)});
    }
  }
};

#endif

/// kBetter: of kept keys only those of higher score count.
template <bool kBetter, Storage T>
void launch_portable(const Arguments<T>& arguments, Stream stream);
/// 16-bit types only.
template <bool kBetter, Storage T>
void launch_mma(const Arguments<T>& arguments, Stream stream);

/// 16-bit types, and where wgmma_can.
template <bool kBetter, Storage T>
void launch_wgmma(const Arguments<T>& arguments, Stream stream);

/// Whether the device has the kernel's instructions, and the kernel an instance for this head_dim.
bool wgmma_can(int64_t head_dim);

/// The product depth of one cosine: over its products, or with mma over the tensor cores' chains of products.
int64_t portable_product_depth(int64_t head_dim);
int64_t mma_product_depth(int64_t head_dim);
/// How many sums of 16 products the tensor cores form one behind the other.
int64_t mma_tensor_chain();
int64_t wgmma_tensor_chain(int64_t head_dim);

}  // namespace nearest_key_search
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
