// A host's ranking at the prompt's end, on the device: the always-kept entries, and the scores of the others.
#pragma once

#include <cstdint>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "layer_scores.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// reference::Ranking in device memory.
struct Ranking {
  HostRules rules;
  AlwaysKept always;
  int64_t candidates = 0;    ///< successive positions, from always.sinks on
  DeviceMatrix head_scores;  ///< [query_heads, m]: per query head, as the host scores; m = rules.scored
  DeviceMatrix scores;       ///< [kv_heads, m]: reduced over the group

  /// The first candidate's score in row 0; rows are scores.cols() apart.
  const float* candidate_scores() const { return scores.data() + always.sinks; }
};

/// reference::rank by the host's rules, or at a rebuild by others.
///
/// rules  ranks() holds
template <Storage T>
Ranking rank(const Policy& policy, const HostRules& rules, LayerScores<T>& known, Queue& queue);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
