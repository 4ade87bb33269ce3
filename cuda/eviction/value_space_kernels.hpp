// The kernels that lengths after W^O choose from: by mma.sync for 16-bit types, by fp32 multiply-adds for fp32.
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

template <Storage16 T>
void launch_gram_mma(const DeviceTensor<const T>& output_projection, float* gram, Stream stream);
void launch_gram_portable(const DeviceTensor<const float>& output_projection, float* gram, Stream stream);

template <Storage16 T>
void launch_squares_mma(const Arguments<T>& arguments, Stream stream);
void launch_squares_portable(const Arguments<float>& arguments, Stream stream);

/// The accumulation depth of gram_matrices over model_dim, and of a squared length over head_dim, which both of its sums take.
int64_t mma_gram_depth(int64_t model_dim);
int64_t portable_gram_depth(int64_t model_dim);
int64_t mma_square_depth(int64_t head_dim);
int64_t portable_square_depth(int64_t head_dim);

/// What tensor cores' sums are off by, as shares of the sums of their terms' absolute values: a number of G, and a squared length
/// with the numbers of G that it is given.
double mma_gram_sums(int64_t model_dim);
double mma_square_sums(int64_t head_dim);

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
