// A host's ranking at the prompt's end, on the device: the always-kept entries, and the scores of the others.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "layer_scores.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// reference::Ranking in device memory. Where scores were given, entries may be always kept anywhere: they
/// are candidates here, whose scores are above all others.
struct Ranking {
  HostRules rules;
  AlwaysKept always;
  int64_t candidates = 0;  ///< successive positions, from always.sinks on
  /// [query_heads, m]: per query head, as the host scores; m = rules.scored, or n if they were given
  DeviceMatrix head_scores;
  DeviceMatrix scores;               ///< [kv_heads, m]: reduced over the group
  std::vector<int64_t> pinned = {};  ///< ascending positions of candidates that are always kept
  DeviceMatrix first_scores = {};    ///< if there are any: `scores`, in which they are infinite
  DeviceMatrix last_scores = {};     ///< likewise, and -infinite

  /// Makes the scores of candidates that are always kept infinite.
  ///
  /// of_candidates  [rows, candidates]
  void put_first(DeviceMatrix& of_candidates, Stream stream) const;
  int64_t always_kept() const { return always.entries() + std::ssize(pinned); }
  /// The first candidate's score in row 0, by which candidates are kept; rows are scores.cols() apart.
  const float* candidate_scores() const {
    return (pinned.empty() ? scores : first_scores).data() + always.sinks;
  }
  /// The same, in which candidates that are always kept come last.
  const float* free_scores() const { return (pinned.empty() ? scores : last_scores).data() + always.sinks; }
};

/// reference::rank by the host's rules, or at a rebuild by others.
///
/// rules  ranks() holds
template <Storage T>
Ranking rank(const Policy& policy, const HostRules& rules, LayerScores<T>& known, Queue& queue);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
