// Judges the selections by which a tested implementation rebuilt its cache during decoding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/traces/trace.hpp>

#include <kvbound/sim/diff/claims/comparison.hpp>
#include <kvbound/sim/diff/claims/tested_implementation.hpp>
#include "head_replay.hpp"

namespace kvbound::sim {

/// Every rebuild of a layer, and the judgement of its selections.
struct RebuildJudgement {
  std::vector<RebuiltLayer> rebuilt;
  TensorAgreement agreement;  ///< of rebuilt_target_of, as far as it says what was kept
};

/// Judges every rebuild's selection as the prompt's is judged (judge/kept_sets.hpp), by the step's query and
/// over all entries so far. An entry that is kept is its own target.
///
/// target_of  [rebuilds, kv_heads, n + steps], not validated; must outlive the result. nullopt: the
///            reference's selections are followed
RebuildJudgement judge_rebuilds(const traces::Layer& layer, const TestedImplementation& implementation,
                                const std::optional<std::vector<int64_t>>& target_of);

}  // namespace kvbound::sim
