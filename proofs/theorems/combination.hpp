// Outputs over compressed caches as combinations of the original entries' values.
#pragma once

#include <kvbound/proofs/engine/merge_prediction.hpp>

namespace kvbound::proofs {

/// One query of a head.
struct Seen {
  /// Its attention over these entries, with outputs before W^O.
  exact::Query over(const exact::Entries& entries) const {
    return exact::attention(exact::logits(query, entries.keys), entries.votes, entries.values);
  }

  const Instance& instance;
  const MergingCase& merging;
  size_t head;
  const exact::Reals& query;
};

/// Calls look(seen) for every query of every head.
template <class Look>
void for_each_seen(const Instance& instance, const MergingCase& merging, const Look& look) {
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (const exact::Reals& query : merging.heads[h].queries) look(Seen{instance, merging, h, query});
  }
}

/// The output over a compressed cache, by the definition of attention, and the weights b of the original
/// entries of which it is said to consist.
struct Combination {
  exact::Reals weights;  ///< [entries]
  exact::Reals output;   ///< before W^O
};

/// The entry of a cluster.
struct Mixture {
  Cluster cluster;
  exact::Reals weights;  ///< [members], e of sum 1: the entry's value is sum_j e_j v_j
  exact::MergedEntry entry;
};

/// After eviction: b = A' of the kept entries, else 0.
Combination evicted(const Seen& seen);
/// After disjoint clusters merged at one time: b_j = A'_r e_j for a member j of the cluster that r replaces,
/// b = A' of the other entries.
Combination merged(const Seen& seen, const std::vector<Mixture>& mixtures);
/// After CaM shared each evicted value among the kept entries k: b_k = A'_k, b_e = mean of A' over those that
/// share v_e.
Combination combined_by_cam(const Seen& seen);

/// The positions in `kept` of the entries that share the value of an evicted one: all that follow it, or all
/// if none does.
std::vector<int64_t> sharing(const std::vector<int64_t>& kept, int64_t entry);
/// The kept entries, with each evicted entry's value, times its factor, shared equally among `sharing`.
///
/// factors  [entries], of which those of evicted entries are read
exact::Entries spread(const Seen& seen, const exact::Reals& factors);

}  // namespace kvbound::proofs
