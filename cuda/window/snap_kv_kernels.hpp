// The kernels that SnapKV's and H2O's scores choose from: by wgmma or mma.sync for 16-bit types, by fp32
// multiply-adds for fp32.
#pragma once

#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>

#include "snap_kv_variants.hpp"
#include "window_tiles.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace snap_kv_kernels {

/// How the tokens of a prompt are split for window_log_sum_exp, on any device: sums of splits are added
/// in an order that it must not depend on. 48 splits of 8 KV heads are 384 blocks, which 132
/// multiprocessors have places for at once where each has three; longer prompts take two such waves for
/// 65,536 tokens, four for 131,072.
struct Splits {
  int64_t tokens;  ///< of one split
  int64_t count;

  explicit Splits(int64_t all)
      : tokens(std::clamp(round_up(ceil_division(all, int64_t{48}), kTileTokens), int64_t{kTileTokens},
                          int64_t{704})),
        count(ceil_division(all, tokens)) {}
};

/// The sums of every split: its largest logit and sum_j exp(z_j - largest), by base 2 of 16-bit types.
struct SplitPartials {
  float* largest;   ///< [splits, queries]; -infinity if the query attends to no token of the split
  float* sums;      ///< [splits, queries]
  int64_t queries;  ///< query_heads * window

  __device__ void write(int64_t split, int64_t query, float most, float sum) const {
    largest[split * queries + query] = most;
    sums[split * queries + query] = sum;
  }
};

/// What the sums over the window are divided by.
inline float divisor_of(WindowReduction reduction, int64_t queries) {
  switch (reduction) {
    case WindowReduction::mean:
      return static_cast<float>(queries);
    case WindowReduction::sum:
      return 1;
  }
  return 1;
}

/// Whether type, shapes and device meet the wgmma kernels' requirements.
template <Storage16 T>
bool wgmma_can(const window_tiles::Window<T>& window);
/// Of a block of launch_splits_wgmma, at most.
int64_t sums_wgmma_shared_bytes();

template <Storage16 T>
void launch_splits_wgmma(const window_tiles::Window<T>& window, const SplitPartials& partials, Stream stream);
template <Storage16 T>
void launch_splits_mma(const window_tiles::Window<T>& window, const Splits& splits,
                       const SplitPartials& partials, Stream stream);
void launch_splits_portable(const window_tiles::Window<float>& window, const Splits& splits,
                            const SplitPartials& partials, Stream stream);
template <Storage16 T>
void launch_attention_wgmma(const window_tiles::Window<T>& window, const float* log_sum_exp,
                            WindowReduction reduction, float* weights, Stream stream);
template <Storage16 T>
void launch_attention_mma(const window_tiles::Window<T>& window, const float* log_sum_exp,
                          WindowReduction reduction, float* weights, Stream stream);
void launch_attention_portable(const window_tiles::Window<float>& window, const float* log_sum_exp,
                               WindowReduction reduction, float* weights, Stream stream);

/// Additions that a term passes through on its way into the sum of one split of so many tokens, and how often
/// the sum is rescaled. By wgmma a term passes through no more than by mma: a tree adds the 32 tokens that a
/// thread has of a tile of 128, of which those that it does not have are zeros, the tiles follow each other,
/// and a tree adds four lanes; it is rescaled at each tile but the first, and by lanes.
int64_t mma_split_depth(int64_t tokens);
int64_t portable_split_depth(int64_t tokens);
int64_t mma_split_rescalings(int64_t tokens);
int64_t portable_split_rescalings(int64_t tokens);
/// The tensor_chain (KernelArithmetic) of the wgmma kernels' logits, of head_dim 64 and 128.
int64_t wgmma_tensor_chain(int64_t head_dim);

}  // namespace snap_kv_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
