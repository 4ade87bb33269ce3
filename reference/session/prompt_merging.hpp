// The clusters that merge at the prompt's end, or at a rebuild, for all KV heads of a layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>

#include "ranking.hpp"

namespace kvbound::reference {

/// The clusters of every KV head.
///
///     evict-first  every evicted entry joins the cluster of the most similar kept entry
///     merge-first  candidates merge before the selection, which then chooses among the merged entries
///
/// target   of the policy's merging
/// ranking  of the layer; read by merge-first only
/// budgets  [kv_heads], after allocation; read by merge-first only
/// kept     [kv_heads]: ascending positions that the selection keeps; merge-first replaces
///          them by its own selection
/// returns  [kv_heads]
std::vector<MergeTargets> merge_targets(const LayerView& layer, const SimilarTarget& target, MergeOrder order,
                                        const Ranking& ranking, std::span<const int64_t> budgets,
                                        std::vector<std::vector<int64_t>>& kept);

}  // namespace kvbound::reference
