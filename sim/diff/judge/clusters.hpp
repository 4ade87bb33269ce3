// Judges the clusters that a tested implementation formed of a prompt's entries, or at a
// rebuild of all entries so far.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>

#include "choice.hpp"
#include "near_tie.hpp"

namespace kvbound::sim {

/// One KV head's clusters: the judgement of each entry's, and those that the replay continues with.
struct TargetsJudgement {
  std::vector<Choice> choices;      ///< [tokens]
  reference::MergeTargets targets;  ///< the tested implementation's, but where that is impossible
};

/// Judges clusters of order=evict-first. An entry that leaves may join a kept entry if no other kept
/// entry's key surely has a larger cosine and its own is not surely below the threshold; it may be dropped
/// if no cosine is surely above.
///
/// keys     [tokens, head_dim]
/// kept     ascending
/// claimed  [tokens]: HeadMerge::target_of, not validated
/// index    of the first of this head's elements in the dump's tensor, [.., 0]
TargetsJudgement judge_evict_first(MatrixView keys, const std::vector<int64_t>& kept,
                                   const SimilarTarget& target, const reference::Arithmetic& arithmetic,
                                   std::span<const int64_t> claimed, const std::vector<int64_t>& index);

/// The candidates that merge before a selection, with their scores and error bounds.
struct MergingCandidates {
  std::span<const int64_t> positions;  ///< ascending
  UncertainScores scores;

  /// The index of a position; -1 for one that is no candidate's.
  int64_t index_of(int64_t position) const {
    const auto found = std::ranges::lower_bound(positions, position);
    return found != positions.end() && *found == position ? found - positions.begin() : -1;
  }
};

/// Judges clusters of order=merge-first. A candidate may join a root if some candidate that may be its parent
/// joined it; a parent has a higher score and the largest cosine, as far as rounding can tell. It may be a
/// root itself if no cosine with a surely higher-scored candidate is surely above the threshold.
///
/// kept  ascending: entries whose clusters the selection keeps
TargetsJudgement judge_merge_first(MatrixView keys, const std::vector<int64_t>& kept,
                                   const MergingCandidates& candidates, const SimilarTarget& target,
                                   const reference::Arithmetic& arithmetic, std::span<const int64_t> claimed,
                                   const std::vector<int64_t>& index);

/// The sums of the scores of all candidates of each root, with error bounds.
struct RootScores {
  std::vector<int64_t> roots;  ///< ascending positions
  std::vector<double> sums, errors;

  UncertainScores view() const { return {sums, errors}; }
};

/// The roots that target_of names among the candidates.
///
/// target_of  [tokens]; candidates whose root is no candidate are left out
RootScores root_scores(const MergingCandidates& candidates, std::span<const int64_t> target_of,
                       const reference::Arithmetic& arithmetic);

}  // namespace kvbound::sim
