// The greedy selection on the device: removes one candidate at a time, always the one whose removal changes
// the window's outputs least.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

#include "selection.hpp"
#include "snap_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Bytes that `select_greedy` needs: about five doubles for every candidate, window query and query head.
int64_t select_greedy_workspace(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t window,
                                int64_t tokens);

/// The candidates that are left of reference::removal_order, for every KV head.
///
/// All sums are formed in double precision, as in the reference: a removal follows from all removals before
/// it, so that one that rounding decides would change what follows. It is no fast selection: removals come
/// one after the other, by one block for a KV head.
///
/// window      its last queries define the error; its tokens are the prompt's
/// values      [kv_heads, tokens, head_dim]
/// candidates  the candidates are positions 0..candidates - 1, at most tokens - window
/// k           [kv_heads], device memory: how many are left, 0..candidates
/// selection   receives their positions, ascending; its status is set to 1 if an error is NaN
/// precision   fp64; ties: the larger position is removed
/// throws      ShapeMismatch; DeviceError
template <Storage T>
void select_greedy(const WindowView<T>& window, DeviceTensor<const T> values, int64_t candidates,
                   const int64_t* k, const SelectionResult& selection, Workspace workspace, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
