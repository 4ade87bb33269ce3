// The clusters that form at the prompt's end, of one KV head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The entries that stay, and the clusters that become one entry each. An entry in neither is dropped.
struct MergeTargets {
  std::vector<int64_t> kept;           ///< ascending positions
  std::vector<MergeCluster> clusters;  ///< by ascending `into`; without scores
};

/// Whether a cosine is near enough.
bool is_similar(double cosine, const SimilarTarget& target);

/// All of 0, 1, ..., count - 1 but the chosen, ascending.
std::vector<int64_t> others_than(std::span<const int64_t> chosen, int64_t count);

/// Those who were not selected go to those who were, each to the most similar one if it is similar enough.
///
/// keys    [n, head_dim], all entries by position
/// kept    ascending positions of those who stay
/// source  KeepKV (arXiv:2504.09936); D2O (arXiv:2406.13035)
MergeTargets evict_first(MatrixView keys, std::vector<int64_t> kept, const SimilarTarget& target);

/// Candidates go to their betters before anyone is selected.
///
///     parent(i) = the candidate of strictly higher score whose key is most similar, if it is similar enough
///     root(i)   = where the chain of parents ends;   score(root) = sum of the scores of all whose root it is
///
/// The k roots of largest score stay, all of them if there are fewer; the others are dropped with all whose root they are.
///
/// keys         [n, head_dim]
/// first        the candidates are positions first, first + 1, ...
/// scores       [candidates]
/// always_kept  ascending positions outside the candidates; they take part in nothing
/// k            how many candidates stay at most
/// source       KeepKV (arXiv:2504.09936); ties, here and there: the smaller position
MergeTargets merge_first(MatrixView keys, int64_t first, VectorView scores,
                         std::span<const int64_t> always_kept, int64_t k, const SimilarTarget& target);

}  // namespace kvbound::reference
