// The tiles that window_attention's kernel is compiled with (primitives/tile_variants.hpp).
#pragma once

#include <iterator>

#include "snap_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace window_tiles {

/// A tile of window_attention_kernel.
struct WindowTile {
  int rows;    ///< queries of a thread
  int blocks;  ///< that a multiprocessor must have registers for
};
/// window_attention takes the first for windows of at most 32 queries, and the second for larger ones. The others are for BF16
/// alone (primitives/tile_variants.hpp).
inline constexpr WindowTile kWindowTiles[] = {{4, 4}, {8, 4}, {2, 4}, {2, 8}, {4, 5}, {8, 3}};
inline constexpr int kWindowTileCount = static_cast<int>(std::size(kWindowTiles));

/// window_attention with any of the tiles. Throws ShapeMismatch if it does not fit into shared memory; as window_attention.
void window_attention_by(int tile, const WindowView<Bfloat16>& window, const float* log_sum_exp,
                         WindowReduction reduction, float* weights, Stream stream);

}  // namespace window_tiles
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
