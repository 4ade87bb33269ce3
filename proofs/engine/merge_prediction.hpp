// The effect of merges on a query's output, and the errors of the predicted scores.
#pragma once

#include "merging_case.hpp"

namespace kvbound::proofs {

/// A rule that merges one head's cluster for a query, which includes the scale.
using MergeRule = exact::MergedEntry (*)(const exact::ClusterMean& mean, const exact::Reals& query);

/// exact::zip_merge and exact::convex_merge, which do not depend on the query.
exact::MergedEntry zip_merge(const exact::ClusterMean& mean, const exact::Reals& query);
exact::MergedEntry convex_merge(const exact::ClusterMean& mean, const exact::Reals& query);

/// Clusters of a head's cache merged at once.
struct Merges {
  Merges() = default;
  /// Merges each cluster by the head's own scores and first query.
  Merges(const MergingCase& merging, size_t head, const std::vector<Cluster>& clusters, MergeRule rule);

  std::vector<Cluster> clusters;
  std::vector<exact::MergedEntry> entries;
  exact::Reals predicted;  ///< ln s^_r = ln(W / P)
};

/// One query's outputs before and after merges.
class QueryEffect {
 public:
  QueryEffect(const MergingCase& merging, size_t head, const Merges& merges, size_t query);

  /// max |1 - s^/s| over the members
  const exact::Real& members_epsilon() const { return members_epsilon_; }
  /// max |1 - s^/s| over the members and the merged entries
  exact::Real epsilon() const { return std::max<exact::Real>(members_epsilon_, merged_epsilon_); }
  /// A'_r: the attention weight of merged entry g.
  exact::Real share(size_t g) const {
    return after_.attention[after_.entries() - merges_.entries.size() + g];
  }
  /// The sum of share(g).
  exact::Real merged_share() const;
  /// A
  const exact::Reals& attention() const { return before_.attention; }
  /// o' - o
  exact::Reals change(Space space) const;
  /// A_j u_j / sum_i A_i u_i for the original entries, u_j = (s_r/s^_r)(s^_j/s_j) for a member j of the
  /// cluster that r replaces, 1 for others.
  exact::Reals reweighted() const;
  /// Half of sum_j |reweighted_j - A_j|: the total variation.
  exact::Real moved_attention() const;
  /// max ||v_i - v_j|| over all i and members j
  exact::Real spread(Space space, exact::Norm norm) const;
  /// Upper bounds of the absolute terms that are rounded to 50
  /// digits in a logit, and in an output, merged entries included.
  exact::Real logit_terms() const { return merging_.logit_terms(index_) + merged_terms_; }
  exact::Real terms(Space space) const { return merging_.value_terms(index_, space) * logit_terms(); }

 private:
  const MergingCase& merging_;
  const MergingHead& head_;
  size_t index_;
  const exact::Reals& query_;
  const Merges& merges_;
  exact::Query before_, after_;
  exact::Real members_epsilon_, merged_epsilon_, merged_terms_;
};

/// 2 epsilon (1 + epsilon) / (1 - epsilon)^2, the factor of KKV-5
exact::Real printed_factor(const exact::Real& epsilon);

/// Whether some cluster of a head, merged by minimum norm, is predicted for a later
/// query with 0 < epsilon < 1.
bool any_predicted(const MergingCase& merging);

}  // namespace kvbound::proofs
