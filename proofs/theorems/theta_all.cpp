// One bound for every method whose output combines the original entries' values: eviction and merging.
#include <kvbound/proofs/engine/theorem.hpp>

#include "catalogue.hpp"
#include "combination.hpp"
#include "merge_rounding.hpp"
#include "papers.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::ClusterMean;
using exact::Entries;
using exact::Norm;
using exact::Query;
using exact::Real;
using exact::Reals;
using exact::Vectors;

// ---- the ways to merge

Mixture convex(const Entries& cache, const Cluster& cluster, const Reals& weights) {
  const Entries members = cache.at(cluster);
  return {cluster,
          weights,
          {oracle::weighted_sum(weights, members.keys), oracle::weighted_sum(weights, members.values), 1}};
}

Mixture by_similarity(const MergingCase& merging, size_t, const Cluster& cluster) {
  return convex(merging.cache, cluster, exact::similarity_weights(merging.cache.at(cluster).keys));
}
Mixture by_gaussian(const MergingCase& merging, size_t, const Cluster& cluster) {
  return convex(merging.cache, cluster, exact::gaussian_weights(merging.cache.at(cluster).keys));
}
Mixture by_keep_kv(const MergingCase& merging, size_t head, const Cluster& cluster) {
  const ClusterMean mean = merging.mean(head, cluster);
  return {cluster, mean.weights, exact::min_norm_merge(mean, merging.heads[head].queries.front())};
}
// Joint values, the heads' means weighted by (W_h / D_h)^2, and the mean key.
Mixture by_keep_kv_jointly(const MergingCase& merging, size_t, const Cluster& cluster) {
  std::vector<ClusterMean> means;
  Reals weights(cluster.size());
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    const ClusterMean& mean = means.emplace_back(merging.mean(h, cluster));
    weights =
        exact::combination(1, weights, exp(2 * (mean.log_weight - merging.log_denominator(h))), mean.weights);
  }
  const oracle::JointMeanOf<Real> joint(means, merging.first_queries(), merging.log_denominators());
  return {cluster, exact::scaled(1 / oracle::sum(weights), weights), {joint.key, joint.value, joint.votes}};
}

// ---- theta-all

// A query's output o over the original entries in a space, and the entries' distances || V_i - c || from the
// centres 0, o and V_0.
struct Centred {
  Centred(const Seen& seen, const Query& original, Space space_, Norm norm_)
      : space(space_),
        norm(norm_),
        output(seen.merging.heads[seen.head].in(space, original.output)),
        values(seen.merging.heads[seen.head].values[static_cast<size_t>(space)]),
        from_zero(exact::norms(values, norm)),
        from_output(distances(output)),
        from_first(distances(values.front())),
        terms(seen.merging.value_terms(seen.head, space)) {}

  Reals distances(const Reals& centre) const {
    Reals result;
    for (const Reals& value : values) result.push_back(exact::norm(exact::difference(value, centre), norm));
    return result;
  }
  std::string where() const { return std::string(", ") + exact::name(norm) + ", " + name(space) + " space"; }

  Space space;
  Norm norm;
  Reals output;
  const Vectors& values;
  Reals from_zero, from_output, from_first;
  Real terms;
};

// sum_i |A_i - b_i| distances_i
Real bound(const Reals& attention, const Combination& combination, const Reals& distances) {
  Real sum = 0;
  for (size_t i = 0; i < attention.size(); ++i)
    sum += abs(attention[i] - combination.weights[i]) * distances[i];
  return sum;
}

// One query's output over the original entries, in both spaces and all norms.
struct Original {
  explicit Original(const Seen& seen_) : seen(seen_), query(seen.over(seen.merging.cache)) {
    for (const Space space : kSpaces) {
      for (const Norm norm : exact::kNorms) all.emplace_back(seen, query, space, norm);
    }
  }

  // || o - o' ||
  Real change(const Combination& combination, const Centred& centred) const {
    const Reals output = seen.merging.heads[seen.head].in(centred.space, combination.output);
    return exact::norm(exact::difference(centred.output, output), centred.norm);
  }
  void hold_bound(const Combination& combination, const Centred& centred, const Reals& distances,
                  const std::string& centre, Outcome& outcome) const {
    const Real left = change(combination, centred), right = bound(query.attention, combination, distances);
    outcome.at_most("|| o - o' || <= sum_i |A_i - b_i| || V_i - c ||, c = " + centre + centred.where(), left,
                    right, centred.terms);
    outcome.ratio(left, right, centred.terms);
  }
  // Claims that the output is the combination, and the bound: around every centre if the totals are equal.
  void hold(const Combination& combination, bool equal_totals, Outcome& outcome) const {
    equal_vectors(outcome, "o' = sum_i b_i v_i", combination.output,
                  oracle::weighted_sum(combination.weights, seen.merging.cache.values),
                  seen.merging.value_terms(seen.head, Space::head));
    if (equal_totals) outcome.equal("sum b = sum A", oracle::sum(combination.weights), 1, 1);
    for (const Centred& centred : all) {
      hold_bound(combination, centred, centred.from_zero, "0", outcome);
      if (!equal_totals) continue;
      hold_bound(combination, centred, centred.from_output, "o", outcome);
      hold_bound(combination, centred, centred.from_first, "V_0", outcome);
    }
  }
  // Claims that around c = 0 the bound on eviction is CriticalKV's.
  void hold_theta(const Combination& eviction, Outcome& outcome) const {
    for (const Centred& centred : all) {
      outcome.equal("of eviction, with c = 0, the bound is theta" + centred.where(),
                    bound(query.attention, eviction, centred.from_zero),
                    oracle::perturbation_bound(query.attention, centred.from_zero, seen.instance.kept),
                    centred.terms);
    }
  }

  const Seen& seen;
  Query query;
  std::vector<Centred> all;
};

Outcome one_bound_for_all(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_seen(instance, merging, [&](const Seen& seen) {
    const Original original(seen);
    const Combination eviction = evicted(seen);
    original.hold(eviction, true, outcome);
    original.hold_theta(eviction, outcome);
    original.hold(combined_by_cam(seen), false, outcome);
    for (const auto method : {by_similarity, by_gaussian, by_keep_kv, by_keep_kv_jointly}) {
      std::vector<Mixture> mixtures;
      for (const Cluster& cluster : merging.clusters) mixtures.push_back(method(merging, seen.head, cluster));
      original.hold(merged(seen, mixtures), true, outcome);
    }
  });
  hold_attention(instance, merging, outcome);
  hold_merges({MergedKey::min_norm, MergeGqa::joint, 0}, instance, merging, outcome);
  hold_convex_weights(merging, outcome);
  return outcome;
}

Outcome centred_whatever_totals(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_seen(instance, merging, [&](const Seen& seen) {
    const Original original(seen);
    const Combination cam = combined_by_cam(seen);
    for (const Centred& centred : original.all)
      original.hold_bound(cam, centred, centred.from_output, "o", outcome);
  });
  return outcome;
}

Outcome centred_is_smaller(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_seen(instance, merging, [&](const Seen& seen) {
    const Original original(seen);
    const Combination eviction = evicted(seen);
    for (const Centred& centred : original.all) {
      outcome.at_most("the bound with c = o is at most that with c = 0" + centred.where(),
                      bound(original.query.attention, eviction, centred.from_output),
                      bound(original.query.attention, eviction, centred.from_zero), centred.terms);
    }
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> theta_all_theorems() {
  return {
      {.id = "theta-all",
       .title = "one bound for eviction and merging",
       .statement =
           "if o = sum_i A_i V_i and o' = sum_i b_i V_i, then || o - o' || <= sum_i |A_i - b_i| || V_i - c ||: "
           "for every c if sum b = sum A, as of eviction (b = A' of the kept) and of merging (b_j = A'_r e_j, "
           "v_r = sum_j e_j v_j), and otherwise, as of CaM, for c = 0; of eviction, c = 0 gives theta",
       .hypotheses = "sum b = sum A or c = 0; any norm",
       .source = "ours; with eviction and c = 0: " + kCriticalKv + ", Theorem 3.3",
       .ratio = "|| o - o' || / bound",
       .sizes = kMergingSizes,
       .property = {"theta-all", "the change of the output is within the bound, around several centres",
                    one_bound_for_all},
       .weakened = {{"theta-all:unequal-totals", "CaM's change is within the bound around c = o",
                     centred_whatever_totals},
                    {"theta-all:centred-is-smaller", "the bound on eviction around c = o is at most theta",
                     centred_is_smaller}}},
  };
}

}  // namespace kvbound::proofs
