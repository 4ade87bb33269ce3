// The greedy selection's removals; for greedy.cu.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>

#include "greedy_state.hpp"
#include "selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace greedy_removal {

/// Queues the removals of every KV head, until k[g] candidates are left, and writes these.
void launch_removals(const greedy_state::State& state, const int64_t* k, const SelectionResult& selection,
                     Stream stream);

}  // namespace greedy_removal
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
