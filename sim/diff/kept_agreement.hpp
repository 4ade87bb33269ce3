// Whether the entries kept after the prompt are those that the reference keeps, or near enough.
#pragma once

#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "comparison.hpp"
#include "prompt_errors.hpp"
#include "tested_implementation.hpp"

namespace kvbound::sim {

/// Judges the kept sets of all KV heads.
///
/// With `greedy` the reference's own set agrees, and any other is undecided: every removal follows from those before,
/// so rounding at one of them may lead anywhere, and no score of the prompt's end says where. So it is where merging
/// comes before the selection, whose scores then follow from the clusters that merged; there fewer may be kept than the
/// budget has room for.
///
/// kept     [kv_heads] of positions; anything
/// teacher_forced   [kv_heads], the reference's own: replaced by what is claimed where that is a set of the prompt's positions
TensorAgreement judge_kept(const LayerView& layer, const TestedImplementation& implementation,
                           const PromptRecord& reference, const PromptErrors& errors,
                           const std::vector<std::vector<int64_t>>& kept,
                           std::vector<std::vector<int64_t>>& teacher_forced);

}  // namespace kvbound::sim
