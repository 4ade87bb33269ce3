// The kernels of lengths: Gram matrices and their factors; lengths after W^O, by mma.sync for 16-bit types
// and by fp32 multiply-adds for fp32; squared lengths in the head's own space.
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>

#include "value_space.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {

template <Storage T>
struct Arguments {
  DeviceTensor<const T> values;  ///< [kv_heads, tokens, head_dim]
  const float* factor;           ///< [query_heads, head_dim, head_dim]: L, with zeros right of the diagonal
  int64_t query_heads;
  float* norms;  ///< [query_heads, tokens]
  bool squared;  ///< whether lengths are

  // In 32 bits: a division of 64 is a call.
  __device__ int kv_head_of(int64_t head) const {
    const auto group = static_cast<uint32_t>(query_heads) / static_cast<uint32_t>(values.slices);
    return static_cast<int>(static_cast<uint32_t>(head) / group);
  }
  __device__ const float* factor_of(int64_t head) const { return factor + head * values.cols * values.cols; }
  __device__ float length_of(float square) const { return squared ? square : sqrtf(square); }
};

/// exact  [query_heads, head_dim, head_dim]: the numbers on and left of the diagonal, not rounded
template <Storage T>
void launch_gram(const DeviceTensor<const T>& output_projection, float* gram, double* exact, Stream stream);

/// exact  from launch_gram; overwritten
void launch_factor(double* exact, int64_t heads, int64_t head_dim, int64_t model_dim, float* factor,
                   Stream stream);

template <Storage16 T>
void launch_lengths_mma(const Arguments<T>& arguments, Stream stream);
void launch_lengths_portable(const Arguments<float>& arguments, Stream stream);

template <Storage T>
void launch_head_squares(const DeviceTensor<const T>& values, int64_t group_size, float* norms,
                         Stream stream);

/// The accumulation depth of a number of v L, over head_dim, and of the sum of their squares.
int64_t mma_product_depth(int64_t head_dim);
int64_t portable_product_depth(int64_t head_dim);
int64_t mma_square_depth(int64_t head_dim);
int64_t portable_square_depth(int64_t head_dim);

/// What tensor cores' sums of a number of v L are off by, as a share of the sum of its terms' absolute
/// values.
double mma_product_sums(int64_t head_dim);

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
