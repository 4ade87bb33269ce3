// Whether who was kept after the prompt is who the reference keeps, or near enough.
#pragma once

#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "agreement.hpp"

namespace kvbound::sim {

/// How far a claimant's scores after the prompt may be off.
struct PromptErrors {
  PromptErrors(const LayerView& layer, const Claimant& claimant, const PromptRecord& reference);

  Matrix weights;          ///< [query_heads, n]: the window's mean attention
  Matrix weight_errors;    ///< [query_heads, n]
  Matrix score;            ///< [kv_heads, m]
  Matrix norms;            ///< [query_heads, n]; empty for policies without norms
  Matrix stage_two_score;  ///< [kv_heads, m]; likewise
};

/// Judges the kept sets of all KV heads.
///
/// kept     [kv_heads] of positions; anything
/// forced   [kv_heads], the reference's own: replaced by what is claimed where that is a set of the prompt's positions
TensorAgreement judge_kept(const LayerView& layer, const Claimant& claimant, const PromptRecord& reference,
                           const PromptErrors& errors, const std::vector<std::vector<int64_t>>& kept,
                           std::vector<std::vector<int64_t>>& forced);

}  // namespace kvbound::sim
