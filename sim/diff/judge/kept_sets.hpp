// Judges whether the entries kept after the prompt are those that the reference keeps, up to rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include <kvbound/sim/diff/claims/comparison.hpp>
#include <kvbound/sim/diff/claims/tested_implementation.hpp>
#include "prompt_errors.hpp"

namespace kvbound::sim {

/// Judges the kept sets of all KV heads.
///
/// With `greedy` the reference's own set agrees, and any other set is undecided: every removal depends on
/// the removals before it, so one rounding may change the whole set, and no score of the prompt's end tells
/// how. With order=merge-first the selection's scores depend on the clusters that merged: where they are
/// recorded their roots' sums decide, elsewhere sets are judged as with `greedy`. Fewer entries than the
/// budget may then be kept.
///
/// errors          by the rules of the prompt, or of a rebuild
/// kept            [kv_heads] lists of positions, not validated
/// target_of       [kv_heads, n]: the clusters that were recorded; nullopt: none
/// teacher_forced  [kv_heads], on entry the reference's own kept sets; replaced by the claimed list where
///                 that is a set of the prompt's positions
TensorAgreement judge_kept(const LayerView& layer, const TestedImplementation& implementation,
                           const PromptRecord& reference, const PromptErrors& errors,
                           const std::vector<std::vector<int64_t>>& kept,
                           const std::optional<std::vector<int64_t>>& target_of,
                           std::vector<std::vector<int64_t>>& teacher_forced);

}  // namespace kvbound::sim
