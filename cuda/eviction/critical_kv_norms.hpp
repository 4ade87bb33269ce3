// The two kernels behind projected_value_norms: what they share and how they are launched.
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>

#include "critical_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace critical_kv_norms {

/// The columns of W^O that a block has in shared memory at a time.
inline constexpr int kColumns = 64;

__host__ __device__ constexpr int64_t ceil_div(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor;
}

template <Storage T>
struct Arguments {
  DeviceTensor<const T> values;             ///< [kv_heads, tokens, head_dim]
  DeviceTensor<const T> output_projection;  ///< [query_heads, head_dim, model_dim]
  float* norms = nullptr;                   ///< [query_heads, tokens]
  int64_t heads_per_block = 1;              ///< query heads of a group for which a block uses its values

  __host__ __device__ int64_t tokens() const { return values.rows; }
  __host__ __device__ int64_t group_size() const { return output_projection.slices / values.slices; }
  __host__ __device__ int64_t blocks_per_group() const { return ceil_div(group_size(), heads_per_block); }
};

/// The query heads that a block is there for: some of a group.
struct Heads {
  int64_t kv_head, first, count;

  template <Storage T>
  __device__ explicit Heads(const Arguments<T>& p) {
    kv_head = blockIdx.y / p.blocks_per_group();
    const int64_t before = blockIdx.y % p.blocks_per_group() * p.heads_per_block;
    first = kv_head * p.group_size() + before;
    count = min(p.heads_per_block, p.group_size() - before);
  }
};

/// |projected| or its square, by the norm: the terms that are summed.
template <Norm norm>
__device__ float term(float projected) {
  return norm == Norm::l1 ? fabsf(projected) : projected * projected;
}

template <Norm norm>
__device__ float norm_of(float sum) {
  return norm == Norm::l1 ? sum : sqrtf(sum);
}

template <Storage T>
void launch_portable(const Arguments<T>& arguments, Norm norm, Stream stream);
/// 16-bit types only.
template <Storage T>
void launch_mma(const Arguments<T>& arguments, Norm norm, Stream stream);

/// Launches blocks of `block_tokens` tokens each. Blocks use their values for the whole group, unless that leaves
/// multiprocessors without work. The results are the same bits either way.
template <Storage T>
void launch_blocks(void (*kernel)(Arguments<T>), Arguments<T> arguments, int64_t block_tokens, int threads,
                   int64_t bytes, Stream stream) {
  const int64_t tiles = ceil_div(arguments.tokens(), block_tokens);
  const bool enough = tiles * arguments.values.slices >= device().multiprocessors;
  arguments.heads_per_block = enough ? arguments.group_size() : 1;
  launch(
      {extent(tiles, arguments.values.slices * arguments.blocks_per_group()), extent(threads), bytes, stream},
      kernel, arguments);
}

/// The accumulation depth of the sum over the columns of one norm.
int64_t portable_accumulation_depth(int64_t model_dim);
int64_t mma_accumulation_depth(int64_t model_dim);
/// And over the products of one projected value, or their sums by 16.
int64_t portable_product_depth(int64_t head_dim);
int64_t mma_product_depth(int64_t head_dim);

/// A sum of 16 products by tensor cores: 17 cuts to 24 bits (reference/bounds/error_bounds.md, "The model").
inline constexpr double kTensorSums = 17 * 0x1p-23;

}  // namespace critical_kv_norms
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
