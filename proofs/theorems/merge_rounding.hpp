// Checks that the reference's merges are within their rounding error bounds:
// reference/merging/keep_kv.hpp, reference/numerics/pseudo_inverse.hpp and
// reference/merging/merge_baselines.hpp are evaluated with bounds, operation by operation.
#pragma once

#include <kvbound/proofs/engine/merge_prediction.hpp>
#include <kvbound/proofs/engine/theorem.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>

namespace kvbound::proofs {

/// Checks the weights of D2O and KVMerger, and a mean with these weights, for every cluster.
void hold_convex_weights(const MergingCase& merging, Outcome& outcome);

/// Checks reference::cluster_mean for every head and cluster.
void hold_cluster_means(const Instance& instance, const MergingCase& merging, Outcome& outcome);

/// Checks reference::merge_cluster for every cluster, with all query heads together.
void hold_merges(const KeyRule& rule, const Instance& instance, const MergingCase& merging, Outcome& outcome);

/// Checks reference::attention of all queries, with votes, before and after the reference merged a cluster.
void hold_attention(const Instance& instance, const MergingCase& merging, Outcome& outcome);

/// Checks the reference's predicted score of a cluster that is merged one entry at a time.
void hold_chains(const Instance& instance, const MergingCase& merging, Outcome& outcome);

}  // namespace kvbound::proofs
