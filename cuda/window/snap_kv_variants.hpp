// The tiles that K2's kernels are compiled with (primitives/tile_variants.hpp); for the host, too.
#pragma once

#include <iterator>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/host_rules.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace snap_kv_kernels {

/// A tile of window_attention_mma_kernel.
struct WindowTile {
  int tokens;  ///< in a stage of shared memory
  int blocks;  ///< that a multiprocessor must have registers for, if head_dim is at most 128
};
/// window_attention and window_log_sum_exp take the first where they have no wgmma kernel. The others are for
/// BF16 and head_dim 128 alone (primitives/tile_variants.hpp).
inline constexpr WindowTile kWindowTiles[] = {{64, 3}, {32, 3}, {128, 2}, {64, 2}};
inline constexpr int kWindowTileCount = static_cast<int>(std::size(kWindowTiles));

/// window_attention with any of the tiles. head_dim: at most 128, padded to it; throws
/// ShapeMismatch as window_attention.
void window_attention_by(int tile, const WindowView<Bfloat16>& window, const float* log_sum_exp,
                         WindowReduction reduction, float* weights, Stream stream);

}  // namespace snap_kv_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
