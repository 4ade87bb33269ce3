// Bounds on the change of later queries' outputs, if the predicted scores have relative
// errors of at most epsilon.
#include <algorithm>

#include <kvbound/proofs/engine/merge_prediction.hpp>

#include "catalogue.hpp"
#include "merge_rounding.hpp"
#include "papers.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::Norm;
using exact::Real;
using exact::Reals;

// The bounds hold for any merged key. They are tightest for keys whose score for this query has the relative
// error epsilon of the members' scores; bit g % 2 of `signs` is the sign of the error of cluster g.
Merges adverse(const MergingCase& merging, size_t head, const Merges& merges, size_t query,
               const Real& epsilon, unsigned signs) {
  Merges result = merges;
  const Reals& q = merging.heads[head].queries[query];
  for (size_t g = 0; g < result.entries.size(); ++g) {
    const Real ratio = 1 + ((signs >> (g % 2) & 1) != 0 ? epsilon : Real(-epsilon));
    Reals& key = result.entries[g].key;
    const Real missing = result.predicted[g] - log(ratio) - oracle::dot(q, key);
    key = exact::combination(1, key, missing / exact::squared(q), q);
  }
  return result;
}

// Calls look(effect) for every query of the head, with several merged keys.
template <class Look>
void for_each_effect(const MergingCase& merging, size_t head, const std::vector<Cluster>& clusters,
                     const Look& look) {
  const Merges by_norm(merging, head, clusters, exact::min_norm_merge),
      by_mean(merging, head, clusters, convex_merge);
  for (size_t i = 0; i < merging.heads[head].queries.size(); ++i) {
    look(QueryEffect(merging, head, by_norm, i));
    const QueryEffect effect(merging, head, by_mean, i);
    look(effect);
    const Real& epsilon = effect.members_epsilon();
    if (epsilon == 0 || epsilon >= 1) continue;
    for (const unsigned signs : {0U, 1U, 2U, 3U}) {
      const Merges merges = adverse(merging, head, by_mean, i, epsilon, signs);
      look(QueryEffect(merging, head, merges, i));
    }
  }
}

// The same for each cluster alone.
template <class Look>
void for_each_single_merge(const MergingCase& merging, const Look& look) {
  for_each_cluster(merging,
                   [&](size_t h, const Cluster& cluster) { for_each_effect(merging, h, {cluster}, look); });
}

template <class Look>
void for_all_at_once(const MergingCase& merging, const Look& look) {
  for (size_t h = 0; h < merging.heads.size() && !merging.clusters.empty(); ++h)
    for_each_effect(merging, h, merging.clusters, look);
}

// || o' - o || <= factor max ||v_i - v_j||, in every norm and space.
void hold_bound(const std::string& claim, const QueryEffect& effect, const Real& factor, Outcome& outcome) {
  for (const Space space : kSpaces) {
    const Reals change = effect.change(space);
    for (const Norm norm : exact::kNorms) {
      const Real left = exact::norm(change, norm), right = factor * effect.spread(space, norm);
      const Real terms = (1 + factor) * effect.terms(space);
      outcome.at_most(claim + ", " + exact::name(norm) + ", " + name(space) + " space", left, right, terms);
      outcome.ratio(left, right, terms);
    }
  }
}

// ---- KKV-5

Outcome one_cluster(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_single_merge(merging, [&](const QueryEffect& effect) {
    if (effect.epsilon() < 1)
      hold_bound("Theta <= 2 e (1 + e) gamma / (1 - e)^2", effect, printed_factor(effect.epsilon()), outcome);
  });
  hold_attention(instance, merging, outcome);
  hold_merges({MergedKey::convex, MergeGqa::mean, 0}, instance, merging, outcome);
  return outcome;
}

Outcome one_cluster_without_merged(const Instance& instance) {
  Outcome outcome;
  for_each_single_merge(MergingCase(instance), [&](const QueryEffect& effect) {
    if (effect.members_epsilon() < 1) {
      hold_bound("Theta <= 2 e (1 + e) gamma / (1 - e)^2, e of the members alone", effect,
                 printed_factor(effect.members_epsilon()), outcome);
    }
  });
  return outcome;
}

Outcome strictly_within(const Instance& instance) {
  Outcome outcome;
  for_each_single_merge(MergingCase(instance), [&](const QueryEffect& effect) {
    if (effect.epsilon() >= 1) return;
    const Real factor = printed_factor(effect.epsilon());
    outcome.below("Theta < 2 e (1 + e) gamma / (1 - e)^2", exact::norm(effect.change(Space::head), Norm::l2),
                  factor * effect.spread(Space::head, Norm::l2), (1 + factor) * effect.terms(Space::head));
  });
  return outcome;
}

// ---- KKV-5'

Outcome many_clusters(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  const auto hold = [&](const QueryEffect& effect) {
    if (effect.epsilon() < 1) {
      hold_bound("Theta <= A'_r 2 e (1 + e) gamma / (1 - e)^2", effect,
                 effect.merged_share() * printed_factor(effect.epsilon()), outcome);
    }
  };
  for_each_single_merge(merging, hold);
  for_all_at_once(merging, hold);
  hold_attention(instance, merging, outcome);
  hold_merges({MergedKey::min_norm, MergeGqa::mean, 0}, instance, merging, outcome);
  return outcome;
}

Outcome many_clusters_without_merged(const Instance& instance) {
  Outcome outcome;
  for_all_at_once(MergingCase(instance), [&](const QueryEffect& effect) {
    if (effect.members_epsilon() < 1) {
      hold_bound("Theta <= A'_r 2 e (1 + e) gamma / (1 - e)^2, e of the members alone", effect,
                 effect.merged_share() * printed_factor(effect.members_epsilon()), outcome);
    }
  });
  return outcome;
}

// Calls look(effect) where the last cluster does not merge: its kept entry is unchanged and its other members
// are dropped.
template <class Look>
void for_each_dropping(const MergingCase& merging, const Look& look) {
  for (size_t h = 0; h < merging.heads.size() && !merging.clusters.empty(); ++h) {
    Merges merges(merging, h, merging.clusters, exact::min_norm_merge);
    const exact::Entries staying = merging.cache.at({&merges.clusters.back().front(), 1});
    merges.entries.back() = {staying.keys[0], staying.values[0], staying.votes[0]};
    const int64_t target = merges.clusters.back().front();
    merges.predicted.back() = merging.heads[h].predicted[target];
    look(QueryEffect(merging, h, merges, 0));
  }
}

Outcome with_some_dropped(const Instance& instance) {
  Outcome outcome;
  for_each_dropping(MergingCase(instance), [&](const QueryEffect& effect) {
    if (effect.epsilon() < 1) {
      hold_bound("Theta <= A'_r 2 e (1 + e) gamma / (1 - e)^2 though some are dropped", effect,
                 effect.merged_share() * printed_factor(effect.epsilon()), outcome);
    }
  });
  return outcome;
}

// ---- KKV-5 sharpened

// tanh(ln(rho) / 4), rho = (1 + epsilon) / (1 - epsilon)
Real half_angle(const Real& epsilon) { return epsilon / (1 + sqrt(1 - epsilon * epsilon)); }

Outcome sharpest(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_single_merge(merging, [&](const QueryEffect& effect) {
    if (effect.epsilon() < 1)
      hold_bound("Theta <= e gamma / (1 + sqrt(1 - e^2))", effect, half_angle(effect.epsilon()), outcome);
  });
  for_all_at_once(merging, [&](const QueryEffect& effect) {
    if (effect.epsilon() < 1) hold_bound("Theta <= e gamma", effect, effect.epsilon(), outcome);
  });
  hold_attention(instance, merging, outcome);
  hold_merges({MergedKey::convex, MergeGqa::joint, 0}, instance, merging, outcome);
  return outcome;
}

Outcome half_for_many(const Instance& instance) {
  Outcome outcome;
  for_all_at_once(MergingCase(instance), [&](const QueryEffect& effect) {
    if (effect.epsilon() < 1)
      hold_bound("Theta <= e gamma / (1 + sqrt(1 - e^2)) for several clusters", effect,
                 half_angle(effect.epsilon()), outcome);
  });
  return outcome;
}

Outcome half_of_epsilon(const Instance& instance) {
  Outcome outcome;
  for_each_single_merge(MergingCase(instance), [&](const QueryEffect& effect) {
    if (effect.epsilon() < 1) hold_bound("Theta <= e gamma / 2", effect, effect.epsilon() / 2, outcome);
  });
  return outcome;
}

// ---- KKV-5 without epsilon

// Claims equation (*) of the written proofs, and the bound that follows from it.
void hold_moved_attention(const MergingCase& merging, const QueryEffect& effect, Outcome& outcome) {
  const Reals moved = exact::difference(effect.reweighted(), effect.attention());
  equal_vectors(outcome, "o' - o = sum_j (A_j u_j / Z - A_j) v_j", effect.change(Space::head),
                oracle::weighted_sum(moved, merging.cache.values), effect.terms(Space::head));
  hold_bound("Theta <= gamma T", effect, effect.moved_attention(), outcome);
}

// Claims that the bounds by epsilon are not smaller; `sharpest` is that of kkv-5-sharp.
void hold_below_bounds_by_epsilon(const QueryEffect& effect, const Real& sharpest, Outcome& outcome) {
  const Real moved = effect.moved_attention();
  const Real by_share = effect.merged_share() * printed_factor(effect.epsilon());
  outcome.at_most("T <= the factor of kkv-5-sharp", moved, sharpest, effect.logit_terms());
  outcome.at_most("T <= the factor of kkv-5-prime", moved, by_share, (1 + by_share) * effect.logit_terms());
}

Outcome by_moved_attention(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_single_merge(merging, [&](const QueryEffect& effect) {
    hold_moved_attention(merging, effect, outcome);
    const Real epsilon = effect.epsilon();
    if (epsilon < 1) hold_below_bounds_by_epsilon(effect, half_angle(epsilon), outcome);
  });
  for_all_at_once(merging, [&](const QueryEffect& effect) {
    hold_moved_attention(merging, effect, outcome);
    const Real epsilon = effect.epsilon();
    if (epsilon < 1) hold_below_bounds_by_epsilon(effect, epsilon, outcome);
  });
  hold_attention(instance, merging, outcome);
  hold_merges({MergedKey::zip, MergeGqa::mean, 0}, instance, merging, outcome);
  return outcome;
}

Outcome half_of_moved_attention(const Instance& instance) {
  Outcome outcome;
  for_each_single_merge(MergingCase(instance), [&](const QueryEffect& effect) {
    hold_bound("Theta <= gamma T / 2", effect, effect.moved_attention() / 2, outcome);
  });
  return outcome;
}

Outcome moved_attention_with_some_dropped(const Instance& instance) {
  Outcome outcome;
  for_each_dropping(MergingCase(instance), [&](const QueryEffect& effect) {
    hold_bound("Theta <= gamma T though some are dropped", effect, effect.moved_attention(), outcome);
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> prediction_bound_theorems() {
  return {
      {.id = "kkv-5",
       .title = "the bound for queries to come",
       .statement =
           "Theta = || o' - o || <= 2 e (1 + e) gamma / (1 - e)^2, e = max |1 - s^/s| over the merged "
           "entries and the one that they became, gamma = max || v_i - v_j || over all i and merged j, "
           "in every norm",
       .hypotheses = "e < 1; one query head, one cluster, v_r its own mean; any key",
       .source = kKeepKv + "; that e must count the merged entry: ours",
       .ratio = "Theta / bound",
       .sizes = kMergingSizes,
       .property = {"kkv-5", "Theta is within the bound", one_cluster},
       .weakened = {{"kkv-5:members-alone", "the same with e over the members alone",
                     one_cluster_without_merged},
                    {"kkv-5:strict", "Theta < the bound, strictly", strictly_within}}},
      {.id = "kkv-5-prime",
       .title = "the bound for many clusters, with what they weigh",
       .statement = "Theta <= A'_r 2 e (1 + e) gamma / (1 - e)^2, A'_r the attention that all merged "
                    "entries get together",
       .hypotheses = "e < 1; one query head, disjoint clusters merged at one time, no entry dropped; any key",
       .source = "ours",
       .ratio = "Theta / bound",
       .sizes = kMergingSizes,
       .property = {"kkv-5-prime", "Theta is within the bound", many_clusters},
       .weakened = {{"kkv-5-prime:members-alone", "the same with e over the members alone",
                     many_clusters_without_merged},
                    {"kkv-5-prime:dropped", "the same if some leave without merging", with_some_dropped}}},
      {.id = "kkv-5-sharp",
       .title = "the sharpest bound by epsilon and gamma",
       .statement = "Theta <= e gamma / (1 + sqrt(1 - e^2)) for one cluster, Theta <= e gamma for many",
       .hypotheses = "as kkv-5-prime",
       .source = "ours",
       .ratio = "Theta / bound",
       .sizes = kMergingSizes,
       .property = {"kkv-5-sharp", "Theta is within the bounds", sharpest},
       .weakened = {{"kkv-5-sharp:many-groups", "that of one cluster for many", half_for_many},
                    {"kkv-5-sharp:half", "Theta <= e gamma / 2 for one cluster", half_of_epsilon}}},
      {.id = "kkv-5-free",
       .title = "the bound by the attention that moves, for every epsilon",
       .statement =
           "Theta <= gamma T, T = sum_j |A_j u_j / Z - A_j| / 2, u_j = (s_r / s^_r) (s^_j / s_j) for "
           "a member j of the cluster that r replaces, 1 for others, Z = sum_j A_j u_j; for e < 1 T "
           "is at most the factors of kkv-5-sharp, kkv-5-prime and kkv-5",
       .hypotheses = "one query head, disjoint clusters merged at one time, v_r their own means, no entry "
                     "dropped; any key",
       .source = "ours",
       .ratio = "Theta / bound",
       .sizes = kMergingSizes,
       .property = {"kkv-5-free", "Theta is within the bound, and that within those by epsilon",
                    by_moved_attention},
       .weakened = {{"kkv-5-free:half", "Theta <= gamma T / 2", half_of_moved_attention},
                    {"kkv-5-free:dropped", "the same if some leave without merging",
                     moved_attention_with_some_dropped}}},
  };
}

}  // namespace kvbound::proofs
