// Merges as the reference evaluates them in double precision: reference/merging/keep_kv.hpp and
// reference/numerics/pseudo_inverse.hpp in 50 digits, with rounding error bounds.
#pragma once

#include <optional>

#include <kvbound/reference/merging/keep_kv.hpp>

#include "merging.hpp"

namespace kvbound::oracle {

/// The pseudo-inverse of rows, each a condition on the unknowns. The reference decomposes another matrix,
/// which differs by these rows' errors and its own (proofs/keep_kv.md, "How the reference is held to this").
class BoundedInverse {
 public:
  explicit BoundedInverse(const Rows& rows);

  /// The numbers of singular values that are at least `share` of the largest and not 0, by the definition and
  /// as rounding may have it. More than one only if a singular value is next to that limit.
  std::vector<size_t> ranks(double share) const;
  /// sum over the `rank` largest of (u_i . targets / sigma_i) v_i; all elements have one bound. Nothing where
  /// kept and dropped directions are too close to each other for a bound.
  std::optional<Row> solution(const Row& targets, size_t rank) const;

 private:
  exact::SingularValues singular_;
  Real backward_;  // of the decomposition, in the 2-norm
  Real off_;       // of the decomposed matrix, in the 2-norm
};

/// The merged entry of a cluster.
struct MergedCluster {
  Row value;
  std::vector<Row> keys;  ///< for each choice that rounding may make; none: no bound can be given
  Bounded votes;
  Row log_scores;         ///< [heads]: ln(W_h / P)
  Bounded zip_scale = 1;  ///< z*/m
  bool singular = false;
};

/// log_scores        [heads][members]
/// log_denominators  [heads], for joint merges
MergedCluster merge_cluster(const KeyRule& rule, MatrixView queries, double scale,
                            const reference::ClusterMembers& members, const Rows& log_scores,
                            const Row& log_denominators);

}  // namespace kvbound::oracle
