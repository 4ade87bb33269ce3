// The kernels of lengths: Gram matrices; squared lengths after W^O, by mma.sync for 16-bit types and by fp32
// multiply-adds for fp32, and their roots; squared lengths in the head's own space.
#pragma once

#include <kvbound/cuda/primitives/row_fragments.hpp>

#include "value_space.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {

/// Rows, depth and, two by two, columns of a product of tensor cores.
inline constexpr int kTile = kRowsAtOnce;
static_assert(kTile == kStepNumbers);

template <Storage T>
struct Arguments {
  DeviceTensor<const T> values;  ///< [kv_heads, tokens, head_dim]
  const float* gram;             ///< [query_heads, head_dim, head_dim]
  int64_t query_heads;
  float* norms;  ///< [query_heads, tokens]

  __host__ __device__ int64_t kv_head_of(int64_t head) const { return head / (query_heads / values.slices); }
};

template <Storage T>
struct RootArguments {
  DeviceTensor<const T> values;             ///< [kv_heads, tokens, head_dim]
  DeviceTensor<const T> output_projection;  ///< [query_heads, head_dim, model_dim]
  const float* gram;                        ///< [query_heads, head_dim, head_dim]
  float* norms;                             ///< [query_heads, tokens]: squares before
  float share;                              ///< gram_share

  __host__ __device__ int64_t group_size() const { return output_projection.slices / values.slices; }
};

template <Storage T>
void launch_gram(const DeviceTensor<const T>& output_projection, float* gram, Stream stream);

template <Storage16 T>
void launch_squares_mma(const Arguments<T>& arguments, Stream stream);
void launch_squares_portable(const Arguments<float>& arguments, Stream stream);

template <Storage T>
void launch_head_squares(const DeviceTensor<const T>& values, int64_t group_size, float* norms,
                         Stream stream);

/// Turns squared lengths into norms, or projects values of which squared lengths say too little.
template <Storage T>
void launch_roots(const RootArguments<T>& arguments, Stream stream);

/// The least share of |v|^2 tr G that v G v^T must have for its root to be the norm: an eighth of what it has
/// if v lies in all of W's directions alike.
inline float gram_share(int64_t head_dim) { return 0x1p-3f / static_cast<float>(head_dim); }

/// The depths of a value that is projected, over head_dim and over model_dim.
int64_t root_product_depth(int64_t head_dim);
int64_t root_accumulation_depth(int64_t model_dim);

/// The accumulation depth of a squared length over head_dim, which both of its sums take.
int64_t mma_square_depth(int64_t head_dim);
int64_t portable_square_depth(int64_t head_dim);

/// What tensor cores' sums of a squared length are off by, as a share of the sum of
/// its terms' absolute values.
double mma_square_sums(int64_t head_dim);

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
