// What the reference's merges may have got wrong in double precision, and the reference held to that: reference/merging/keep_kv.hpp,
// pseudo_inverse.hpp and merge_baselines.hpp evaluated with bounds, operation by operation.
#pragma once

#include <kvbound/proofs/engine/merge_prediction.hpp>
#include <kvbound/proofs/engine/theorem.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>

namespace kvbound::proofs {

/// Weights of D2O and KVMerger, and means by them, for every cluster.
void hold_convex_weights(const MergingCase& merging, Outcome& outcome);

/// reference::cluster_mean of every head's clusters.
void hold_cluster_means(const Instance& instance, const MergingCase& merging, Outcome& outcome);

/// reference::merge_cluster of every cluster, for all query heads together.
void hold_merges(const reference::KeyRule& rule, const Instance& instance, const MergingCase& merging,
                 Outcome& outcome);

/// reference::attention of all queries, with votes: before, and after the reference merged a cluster.
void hold_attention(const Instance& instance, const MergingCase& merging, Outcome& outcome);

/// What the reference predicts of a merged entry, whether merged at once or one by one.
void hold_chains(const Instance& instance, const MergingCase& merging, Outcome& outcome);

}  // namespace kvbound::proofs
