// The clusters of one KV head that form at the prompt's end or at a rebuild.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The kept entries, and the clusters that are merged into one entry each. An entry in neither is dropped.
struct MergeTargets {
  std::vector<int64_t> kept;            ///< ascending positions
  std::vector<MergeCluster> clusters;   ///< by ascending `into`; without scores
  std::vector<int64_t> target_of = {};  ///< [n], as in HeadMerge
};

/// Whether a cosine is above the target's threshold; always true without a threshold.
bool is_similar(double cosine, const SimilarTarget& target);

/// The indices 0, 1, ..., count - 1 without the chosen ones, ascending.
std::vector<int64_t> others_than(std::span<const int64_t> chosen, int64_t count);

/// Every evicted entry joins the cluster of the kept entry with the most similar key,
/// if that is similar enough.
///
/// keys    [n, head_dim], all entries by position
/// kept    ascending positions of the kept entries
/// source  KeepKV (arXiv:2504.09936); D2O (arXiv:2406.13035)
MergeTargets evict_first(MatrixView keys, std::vector<int64_t> kept, const SimilarTarget& target);

/// Candidates merge with higher-scored candidates before the selection.
///
///     parent(i) = the candidate of strictly higher score whose key is most similar, if it is similar enough
///     root(i)   = the end of i's chain of parents
///     score(root) = sum of the scores of all candidates with this root
///
/// The k roots of largest score are kept, all of them if there are fewer; the clusters of the
/// other roots are dropped.
///
/// keys         [n, head_dim]
/// always_kept  ascending positions; they do not merge, and all others are candidates
/// scores       [candidates]
/// k            largest number of roots to keep
/// source       KeepKV (arXiv:2504.09936); ties, of cosines and of scores: the smaller position
MergeTargets merge_first(MatrixView keys, VectorView scores, std::span<const int64_t> always_kept, int64_t k,
                         const SimilarTarget& target);

}  // namespace kvbound::reference
