// What the kernels of projected_value_norms share: arguments, norms, launches.
#pragma once

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>

#include "critical_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace critical_kv_norms {

/// The columns of W^O that a block has in shared memory at a time.
inline constexpr int kColumns = 64;

template <Storage T>
struct Arguments {
  DeviceTensor<const T> values;             ///< [kv_heads, tokens, head_dim]
  DeviceTensor<const T> output_projection;  ///< [query_heads, head_dim, model_dim]
  float* norms = nullptr;                   ///< [query_heads, tokens]
  int64_t heads_per_block = 1;              ///< query heads of a group for which a block uses its values

  __host__ __device__ int64_t tokens() const { return values.rows; }
  __host__ __device__ int64_t group_size() const { return output_projection.slices / values.slices; }
  __host__ __device__ int64_t blocks_per_group() const {
    return ceil_division(group_size(), heads_per_block);
  }
};

/// The query heads that a block computes norms for: all of a group, or one.
struct Heads {
  int64_t kv_head, first, count;

  /// number  of all such sets of query heads; row_of_block() where every set has blocks of its own
  template <Storage T>
  __device__ Heads(const Arguments<T>& p, int64_t number) {
    kv_head = number / p.blocks_per_group();
    const int64_t before = number % p.blocks_per_group() * p.heads_per_block;
    first = kv_head * p.group_size() + before;
    count = min(p.heads_per_block, p.group_size() - before);
  }
};

template <Storage T>
void launch_portable(const Arguments<T>& arguments, Stream stream);
/// 16-bit types only, and head_dim a multiple of 16.
template <Storage T>
void launch_mma(const Arguments<T>& arguments, Stream stream);
/// 16-bit types only, and where wgmma_can.
template <Storage T>
void launch_wgmma(const Arguments<T>& arguments, Stream stream);

/// Whether the device has the kernel's instructions, and the kernel an instance for this head_dim.
bool mma_can(int64_t head_dim);
bool wgmma_can(int64_t head_dim);

/// Launches a grid of (ceil(tokens / block_tokens), kv_heads * ceil(group / heads_per_block)) blocks. A block
/// computes all query heads of its group, or one if there would otherwise be fewer blocks than
/// multiprocessors. Results are the same bits either way.
template <auto kernel, Storage T>
void launch_blocks(Arguments<T> arguments, int64_t block_tokens, int threads, int64_t bytes, Stream stream) {
  const int64_t tiles = ceil_division(arguments.tokens(), block_tokens);
  const bool enough = tiles * arguments.values.slices >= device().multiprocessors;
  arguments.heads_per_block = enough ? arguments.group_size() : 1;
  launch_dependent<kernel>({extent_of_rows(tiles, arguments.values.slices * arguments.blocks_per_group()),
                            extent(threads), bytes, stream},
                           arguments);
}

/// The accumulation depth of the sum over the columns of one norm.
int64_t portable_accumulation_depth(int64_t model_dim);
int64_t mma_accumulation_depth(int64_t model_dim);
int64_t wgmma_accumulation_depth(int64_t model_dim);
/// The product depth of one projected value: over its products, or with mma over the tensor
/// cores' chains of products.
int64_t portable_product_depth(int64_t head_dim);
int64_t mma_product_depth(int64_t head_dim);
/// How many sums of 16 products the tensor cores form one behind the other.
int64_t mma_tensor_chain();
int64_t wgmma_tensor_chain(int64_t head_dim);

}  // namespace critical_kv_norms
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
