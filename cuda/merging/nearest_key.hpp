// The kept entry whose key has the largest cosine with that of an evicted entry.
#pragma once

#include <cstdint>
#include <string>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/arithmetic.hpp>

namespace kvbound::cuda {

/// Which kernel searches for nearest keys: mma needs a 16-bit type and compute capability 8.0; wgmma also
/// head_dim 64 or 128 and compute capability 9.0; portable has no requirements.
enum class SearchKernel { chosen, portable, mma, wgmma };

/// The kernel that `chosen` selects, and why.
struct SearchChoice {
  SearchKernel kernel = SearchKernel::portable;
  std::string
      why;  ///< of the kernels on tensor cores that were tried: that a result is right, or what is wrong
};

/// Rows of keys, and their lengths.
template <Storage T>
struct KeyRows {
  DeviceTensor<const T> keys;      ///< [kv_heads, rows, head_dim]
  const float* norms = nullptr;    ///< [kv_heads, rows], device memory: key_norms of them
  const int64_t* count = nullptr;  ///< [kv_heads], device memory: how many rows are in use, the first ones
};

/// The nearest keys of some others; device memory.
struct NearestKeys {
  int64_t* index = nullptr;  ///< [kv_heads, stride]; -1: there is none
  float* cosine = nullptr;   ///< [kv_heads, stride]: -1..1
  int64_t stride = 0;
};

inline namespace KVBOUND_CUDA_BUILD {

/// reference::key_norms, also where squares overflow or underflow.
///
/// keys       [kv_heads, rows, head_dim], at most 2^30 rows, head_dim 1..256
/// count      [kv_heads], device memory: how many rows are in use; null: all
/// norms      [kv_heads, rows], device memory; of rows that are not in use they are left as they are
/// precision  fp32; equal keys have equal norms to the last bit
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void key_norms(DeviceTensor<const T> keys, const int64_t* count, float* norms, Stream stream);

/// For some keys of every KV head the nearest of others: reference::nearest_keys.
///
///     cosine(a, b) = a . b / (||a|| ||b||),  0 if either is zero
///
/// leaving    rows of `all` by position: their positions are leaving[g, i] for i < leaving_count[g]
/// all        [kv_heads, tokens, head_dim], at most 2^30 tokens; `count` is not read
/// kept       [kv_heads, capacity, head_dim], capacity likewise
/// nearest    receives, for i < leaving_count[g], the row of `kept`; stride >= the most that leave
/// kernel     chosen: search_choice; one whose requirements are not met throws ShapeMismatch
/// precision  fp32, also where products of lengths overflow or underflow; error: cosine_error in
///            reference/bounds/merge_cluster_errors.hpp with nearest_keys_arithmetic()
/// ties       the smaller row; equal keys have equal cosines to the last bit
/// the same inputs give the same bits for the same kernel
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void nearest_keys(const KeyRows<T>& all, const int64_t* leaving, int64_t leaving_stride,
                  const int64_t* leaving_count, const KeyRows<T>& kept, const NearestKeys& nearest,
                  Stream stream, SearchKernel kernel = SearchKernel::chosen);

/// For each candidate the nearest of those of strictly higher score: reference::nearest_better_keys.
///
/// candidates  [kv_heads, rows, head_dim], at most 2^30 rows; `count` null: all rows
/// scores      [kv_heads, rows], row_stride numbers from row to row
/// nearest     receives row indices; -1 for candidates of the highest score; stride >= rows
/// kernel, precision, ties, throws: as above
template <Storage T>
void nearest_better_keys(const KeyRows<T>& candidates, NumberRows<const float> scores,
                         const NearestKeys& nearest, Stream stream,
                         SearchKernel kernel = SearchKernel::chosen);

/// The fastest kernel whose results of a small problem are right on this device: wgmma, mma or portable. A
/// process tries them once for each device, type and head_dim, which waits for the device.
template <Storage T>
SearchChoice search_choice(int64_t head_dim);
/// The kernel that `chosen` selects on this device.
template <Storage T>
SearchKernel chosen_search_kernel(int64_t head_dim);

/// The arithmetic of both searches: product_depth over the head_dim products of one cosine, with mma over the
/// tensor cores' chains of four sums of 16 products. wgmma sums all products in one chain.
///
/// kernel  portable, mma or wgmma
KernelArithmetic nearest_keys_arithmetic(int64_t head_dim, SearchKernel kernel);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
