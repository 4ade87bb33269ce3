// One key and one value for several query heads: the best value, and its cost.
#include <algorithm>

#include <kvbound/proofs/engine/merge_prediction.hpp>

#include "catalogue.hpp"
#include "merge_rounding.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::ClusterMean;
using exact::JointMean;
using exact::MergedEntry;
using exact::Norm;
using exact::Query;
using exact::Real;
using exact::Reals;

JointMean joint_mean(const MergingCase& merging, const Cluster& cluster) {
  std::vector<ClusterMean> means;
  for (size_t h = 0; h < merging.heads.size(); ++h) means.push_back(merging.mean(h, cluster));
  return {means, merging.first_queries(), merging.log_denominators()};
}

// The change of a head's output as an affine function of the merged value: o' - o = share * v_r - miss.
struct Affine {
  Real share;
  Reals miss;
};

// This function for each head, in the space, for the given logits of the merged entry.
std::vector<Affine> outputs(const MergingCase& merging, const Cluster& cluster, const Reals& merged_logits,
                            Space space) {
  std::vector<Affine> result;
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    const MergingHead& head = merging.heads[h];
    const auto& values = head.values[static_cast<size_t>(space)];
    const Query before = exact::attention(head.predicted, merging.cache.votes, values);
    const MergedEntry nothing{{}, Reals(values.front().size()), oracle::sum(merging.cache.at(cluster).votes)};
    exact::Entries cache = merging.cache;
    cache.values = values;
    const Query after = exact::merged_attention(head.predicted, cache, cluster, merged_logits[h], nothing);
    result.push_back({after.attention.back(), exact::difference(before.output, after.output)});
  }
  return result;
}

// sum_h || o'_h - o_h ||^2
Real objective(const std::vector<Affine>& heads, const exact::Vectors& values) {
  Real sum = 0;
  for (size_t h = 0; h < heads.size(); ++h)
    sum += exact::squared(exact::combination(heads[h].share, values[h], -1, heads[h].miss));
  return sum;
}

Real objective(const std::vector<Affine>& heads, const Reals& value) {
  return objective(heads, exact::Vectors(heads.size(), value));
}

// The value that minimises the objective: sum_h share_h miss_h / sum_h share_h^2.
Reals best_value(const std::vector<Affine>& heads) {
  Reals sum(heads.front().miss.size());
  Real squares = 0;
  for (const Affine& head : heads) {
    sum = exact::combination(1, sum, head.share, head.miss);
    squares += head.share * head.share;
  }
  return squares > 0 ? exact::scaled(1 / squares, sum) : sum;
}

// Per head, the logit that preserves the cluster's weight.
Reals targets(const MergingCase& merging, const Cluster& cluster) {
  Reals result;
  for (size_t h = 0; h < merging.heads.size(); ++h) result.push_back(merging.mean(h, cluster).target);
  return result;
}

Reals logits_of(const MergingCase& merging, const Reals& key) {
  Reals result;
  for (const MergingHead& head : merging.heads) result.push_back(oracle::dot(head.queries.front(), key));
  return result;
}

Real squared_terms(const MergingCase& merging, Space space) {
  Real size = 0, logit = 1;
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    size = std::max<Real>(size, merging.value_terms(h, space));
    logit = std::max<Real>(logit, merging.logit_terms(h));
  }
  return 16 * (1 + size * size) * logit;
}

Real condition(const JointMean& joint) {
  return joint.singular.sigmas.front() / joint.singular.sigmas.back();
}

// The vectors that differ from `value` in one number, by +-2^-6.
std::vector<Reals> neighbours(const Reals& value) {
  std::vector<Reals> result;
  for (size_t c = 0; c < value.size(); ++c) {
    for (const Real& step : {ldexp(Real(1), -6), ldexp(Real(-1), -6)}) result.emplace_back(value)[c] += step;
  }
  return result;
}

// ---- KKV-GQA

void hold_best_value(const MergingCase& merging, const Cluster& cluster, const JointMean& joint,
                     Outcome& outcome) {
  const std::vector<Affine> heads = outputs(merging, cluster, targets(merging, cluster), Space::head);
  const Real found = objective(heads, joint.value), terms = squared_terms(merging, Space::head);
  Real floor = 0, squares = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    const ClusterMean mean = merging.mean(h, cluster);
    const Real weight = exp(mean.log_weight - merging.log_denominator(h));
    squares += weight * weight;
    floor += weight * weight * exact::squared(exact::difference(joint.value, mean.value));
    outcome.at_most("no head's own mean is better", found, objective(heads, mean.value), terms);
  }
  outcome.equal("sum || o'_h - o_h ||^2 = sum c_h || v_r - v-_h ||^2", found, floor, terms);
  for (const Reals& other : neighbours(joint.value)) {
    outcome.equal("another value costs sum c || v - v_r ||^2 more", objective(heads, other),
                  found + squares * exact::squared(exact::difference(other, joint.value)), terms);
  }
}

Outcome joint_value_is_best(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (const Cluster& cluster : merging.clusters) {
    const JointMean joint = joint_mean(merging, cluster);
    const MergedEntry merged = joint.merged(merging.heads.size());
    const Reals reached = logits_of(merging, merged.key), wanted = targets(merging, cluster);
    const Real key = 1 + merging.key_size();
    for (size_t h = 0; h < wanted.size(); ++h) {
      const Real kappa = condition(joint), size = joint.singular.sigmas.front();
      outcome.equal("independent queries: every head gets its logit", reached[h], wanted[h],
                    64 * kappa * kappa * kappa * (score_terms(wanted) + (1 + size) * key));
    }
    hold_best_value(merging, cluster, joint, outcome);
  }
  for (const double rank : {0.0, 0.3, 1.0})
    hold_merges({MergedKey::min_norm, MergeGqa::joint, rank}, instance, merging, outcome);
  hold_merges({MergedKey::convex, MergeGqa::joint, 0}, instance, merging, outcome);
  return outcome;
}

Outcome joint_is_lossless(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (const Cluster& cluster : merging.clusters) {
    const JointMean joint = joint_mean(merging, cluster);
    const auto heads = outputs(merging, cluster, targets(merging, cluster), Space::head);
    outcome.equal("sum || o'_h - o_h ||^2 = 0", objective(heads, joint.value), 0,
                  squared_terms(merging, Space::head));
  }
  return outcome;
}

// With a direction dropped, the logits differ from the targets.
Outcome best_with_dropped(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (const Cluster& cluster : merging.clusters) {
    const JointMean joint = joint_mean(merging, cluster);
    const auto heads = outputs(merging, cluster, logits_of(merging, joint.merged(1).key), Space::head);
    outcome.at_most("with one direction alone, no value is better", objective(heads, joint.value),
                    objective(heads, best_value(heads)), squared_terms(merging, Space::head));
  }
  return outcome;
}

Outcome best_in_projected_space(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (const Cluster& cluster : merging.clusters) {
    const JointMean joint = joint_mean(merging, cluster);
    const auto heads = outputs(merging, cluster, targets(merging, cluster), Space::projected);
    const auto projected = [&](const Reals& value) {
      exact::Vectors values;
      for (const MergingHead& head : merging.heads) values.push_back(head.in(Space::projected, value));
      return objective(heads, values);
    };
    for (const Reals& other : neighbours(joint.value)) {
      outcome.at_most("after W^O no value is better", projected(joint.value), projected(other),
                      squared_terms(merging, Space::projected));
    }
  }
  return outcome;
}

Outcome best_of_free_logits(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (const Cluster& cluster : merging.clusters) {
    const Reals wanted = targets(merging, cluster);
    const auto heads = outputs(merging, cluster, wanted, Space::head);
    for (const Reals& other : neighbours(wanted)) {
      const auto moved = outputs(merging, cluster, other, Space::head);
      outcome.at_most("no other logits are better", objective(heads, best_value(heads)),
                      objective(moved, best_value(moved)), squared_terms(merging, Space::head));
    }
  }
  return outcome;
}

// All clusters merge at once, each with its best value, and every
// head has its target logits: o'_h - o_h = sum_g (W_g / D) (v_g - v-_g).
Outcome best_of_many_clusters(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  if (merging.clusters.size() < 2) return outcome;
  const auto cost = [&](const Reals& moved_by) {
    Real sum = 0;
    for (size_t h = 0; h < merging.heads.size(); ++h) {
      Reals change(moved_by.size());
      for (size_t g = 0; g < merging.clusters.size(); ++g) {
        const ClusterMean mean = merging.mean(h, merging.clusters[g]);
        Reals apart = exact::difference(joint_mean(merging, merging.clusters[g]).value, mean.value);
        if (g == 0) apart = exact::combination(1, apart, 1, moved_by);
        change = exact::combination(1, change, exp(mean.log_weight - merging.log_denominator(h)), apart);
      }
      sum += exact::squared(change);
    }
    return sum;
  };
  const Reals still(merging.cache.values.front().size());
  for (const Reals& moved : neighbours(still)) {
    outcome.at_most("no other value of the first cluster is better", cost(still), cost(moved),
                    squared_terms(merging, Space::head));
  }
  return outcome;
}

// ---- KKV-5-joint

// The effect of clusters that merge jointly and at once on one query of one head.
struct JointEffect {
  const MergingHead& head;
  QueryEffect effect;
  std::vector<Reals> apart;  // [clusters]: v_r - v-_h
  Real condition;            // 1 + condition number of the heads' queries

  // An upper bound of the absolute terms that are rounded to 50 digits on either side of
  // a bound with this factor.
  Real terms(Space space, const Real& factor) const {
    return (1 + factor) * condition * condition * condition * effect.terms(space);
  }
};

// Calls look(effect) for every head and query, with keys corrected along `rank` directions, for all ranks.
template <class Look>
void for_each_joint_effect(const MergingCase& merging, const std::vector<Cluster>& clusters,
                           const Look& look) {
  std::vector<JointMean> joint;
  for (const Cluster& cluster : clusters) joint.push_back(joint_mean(merging, cluster));
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (size_t rank = 0; rank <= merging.heads.size(); ++rank) {
      Merges merges;
      merges.clusters = clusters;
      std::vector<Reals> apart;
      for (size_t g = 0; g < clusters.size(); ++g) {
        const ClusterMean mean = merging.mean(h, clusters[g]);
        merges.entries.push_back(joint[g].merged(rank));
        merges.predicted.push_back(mean.target);
        apart.push_back(exact::difference(joint[g].value, mean.value));
      }
      for (size_t i = 0; i < merging.heads[h].queries.size(); ++i) {
        const QueryEffect effect(merging, h, merges, i);
        if (effect.epsilon() < 1)
          look(JointEffect{merging.heads[h], effect, apart, 1 + condition(joint.front())});
      }
    }
  }
}

// The same for each cluster alone, and for all clusters at once.
template <class Look>
void for_each_joint_merge(const MergingCase& merging, const Look& look) {
  for (const Cluster& cluster : merging.clusters) for_each_joint_effect(merging, {cluster}, look);
  if (merging.clusters.size() > 1) for_each_joint_effect(merging, merging.clusters, look);
}

// A'_r || v_r - v-_h || for every cluster.
Reals weighted_distances(const JointEffect& joint, Space space, Norm norm) {
  Reals result;
  for (size_t g = 0; g < joint.apart.size(); ++g)
    result.push_back(joint.effect.share(g) * exact::norm(joint.head.in(space, joint.apart[g]), norm));
  return result;
}

Outcome joint_bound(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_joint_merge(merging, [&](const JointEffect& joint) {
    const Real factor = printed_factor(joint.effect.epsilon());
    for (const Space space : kSpaces) {
      for (const Norm norm : exact::kNorms) {
        const Real left = exact::norm(joint.effect.change(space), norm);
        const Real right = joint.effect.merged_share() * factor * joint.effect.spread(space, norm) +
                           oracle::sum(weighted_distances(joint, space, norm));
        const Real terms = joint.terms(space, factor);
        outcome.at_most("Theta_h <= A'_R 2 e (1 + e) gamma / (1 - e)^2 + sum_r A'_r || v_r - v-_h ||", left,
                        right, terms);
        outcome.ratio(left, right, terms);
      }
    }
  });
  hold_merges({MergedKey::min_norm, MergeGqa::joint, 0}, instance, merging, outcome);
  return outcome;
}

Outcome own_bound_of_joint(const Instance& instance) {
  Outcome outcome;
  for_each_joint_merge(MergingCase(instance), [&](const JointEffect& joint) {
    const Real factor = printed_factor(joint.effect.epsilon());
    outcome.at_most("Theta_h <= 2 e (1 + e) gamma / (1 - e)^2",
                    exact::norm(joint.effect.change(Space::head), Norm::l2),
                    factor * joint.effect.spread(Space::head, Norm::l2), joint.terms(Space::head, factor));
  });
  return outcome;
}

Outcome joint_bound_of_largest_cluster(const Instance& instance) {
  Outcome outcome;
  for_each_joint_merge(MergingCase(instance), [&](const JointEffect& joint) {
    const Real factor = printed_factor(joint.effect.epsilon());
    const Reals distances = weighted_distances(joint, Space::head, Norm::l2);
    outcome.at_most("Theta_h <= A'_R 2 e (1 + e) gamma / (1 - e)^2 + max_r A'_r || v_r - v-_h ||",
                    exact::norm(joint.effect.change(Space::head), Norm::l2),
                    joint.effect.merged_share() * factor * joint.effect.spread(Space::head, Norm::l2) +
                        *std::ranges::max_element(distances),
                    joint.terms(Space::head, factor));
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> joint_merge_theorems() {
  return {
      {.id = "kkv-gqa",
       .title = "one key and one value for several query heads",
       .statement = "if the heads' queries are independent, k_r = mean_h k-_h + the smallest correction "
                    "gives each its logit scale q_h . k-_h - KL_h; given these logits sum_h || o'_h - "
                    "o_h ||^2 = sum_h c_h || v_r - v-_h ||^2, c_h = (W_h / D_h)^2, and v_r = sum_h c_h "
                    "v-_h / sum_h c_h makes it smallest: another v costs sum_h c_h || v - v_r ||^2 more",
       .hypotheses = "every head has its logit (no direction is dropped); one cluster; outputs before W^O",
       .source = "ours",
       .ratio = "",
       .sizes = kMergingSizes,
       .property = {"kkv-gqa", "every logit is met, and no value is better", joint_value_is_best},
       .weakened = {{"kkv-gqa:lossless", "no head loses anything", joint_is_lossless},
                    {"kkv-gqa:dropped", "no value is better if a direction was dropped", best_with_dropped},
                    {"kkv-gqa:projected", "no value is better for the hidden states",
                     best_in_projected_space},
                    {"kkv-gqa:free-logits", "nor with other logits", best_of_free_logits},
                    {"kkv-gqa:many-groups", "no value of a cluster is better where others merge, too",
                     best_of_many_clusters}}},
      {.id = "kkv-5-joint",
       .title = "the bound for a joint merge",
       .statement = "Theta_h <= A'_R 2 e (1 + e) gamma / (1 - e)^2 + sum_r A'_r || v_r - v-_h,r || for "
                    "each query head, e its own, A'_R = sum_r A'_r",
       .hypotheses = "e < 1; disjoint clusters merged at one time, no entry dropped; any keys, any v_r",
       .source = "ours",
       .ratio = "Theta_h / bound",
       .sizes = kMergingSizes,
       .property = {"kkv-5-joint", "Theta_h is within the bound", joint_bound},
       .weakened = {{"kkv-5-joint:own-bound", "kkv-5 holds of joint merges, too", own_bound_of_joint},
                    {"kkv-5-joint:largest-group", "with the largest term of the clusters' sum alone",
                     joint_bound_of_largest_cluster}}},
  };
}

}  // namespace kvbound::proofs
