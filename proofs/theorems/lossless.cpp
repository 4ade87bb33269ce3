// Conditions under which merging is lossless, and the keys for which it is.
#include <algorithm>

#include <kvbound/proofs/engine/merge_prediction.hpp>

#include "catalogue.hpp"
#include "merge_rounding.hpp"
#include "papers.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::ClusterMean;
using exact::MergedEntry;
using exact::Query;
using exact::Real;
using exact::Reals;

void hold_unchanged(const QueryEffect& effect, const Real& factor, Outcome& outcome) {
  for (const Space space : kSpaces) {
    const Reals change = effect.change(space);
    equal_vectors(outcome, std::string("o' = o, ") + name(space) + " space", change, Reals(change.size()),
                  factor * effect.terms(space));
  }
}

// ---- KKV-3

bool has_zip(const ClusterMean& mean) { return mean.mean_score != 0 || mean.divergence == 0; }

// z*/m
Real zip_scale(const ClusterMean& mean) {
  return mean.divergence == 0 ? Real(1) : Real(1 - mean.divergence / mean.mean_score);
}

Reals shifted(Reals logits, const Real& shift) {
  for (Real& logit : logits) logit += shift;
  return logits;
}

// One head's cluster and its first query, with a constant added to all logits.
struct Shifted {
  Shifted(const MergingCase& merging, size_t head, const Cluster& cluster_, const Real& shift)
      : logits(shifted(merging.heads[head].predicted, shift)),
        cache(merging.cache),
        cluster(cluster_),
        mean(cache.at(cluster), shifted(merging.predicted(head, cluster), shift)),
        before(exact::attention(logits, cache.votes, cache.values)) {}

  // The attention after the cluster was replaced by one entry with this logit.
  Query after(const Real& logit) const {
    return exact::merged_attention(logits, cache, cluster, logit, exact::convex_merge(mean));
  }
  Real terms() const { return 16 * before.size * score_terms(logits); }

  Reals logits;
  const exact::Entries& cache;
  const Cluster& cluster;
  ClusterMean mean;
  Query before;
};

// With m = 0 every multiple of k- has the logit 0.
void hold_singular(const Shifted& singular, Outcome& outcome) {
  const Query after = singular.after(0);
  const Real missing = after.attention.back() * (1 - exp(-singular.mean.divergence));
  equal_vectors(outcome, "m = 0: o' - o = A'_r (1 - e^-KL) (v- - o)",
                exact::difference(after.output, singular.before.output),
                exact::scaled(missing, exact::difference(singular.mean.value, singular.before.output)),
                singular.terms());
}

Outcome zip_is_lossless(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    std::vector<Cluster> all;
    Real largest = 1;
    for (const Cluster& cluster : merging.clusters) {
      const ClusterMean mean = merging.mean(h, cluster);
      hold_singular(Shifted(merging, h, cluster, -mean.mean_score), outcome);
      if (!has_zip(mean)) continue;
      all.push_back(cluster);
      const Real factor = 1 + abs(zip_scale(mean));
      largest = std::max(largest, factor);
      const Merges merges(merging, h, {cluster}, zip_merge);
      const QueryEffect effect(merging, h, merges, 0);
      outcome.equal("q . k_r = z*", oracle::dot(merging.heads[h].queries.front(), merges.entries[0].key),
                    mean.target, factor * (effect.logit_terms() + score_terms(merging.heads[h].predicted)));
      hold_unchanged(effect, factor, outcome);
    }
    const Merges merges(merging, h, all, zip_merge);
    if (all.size() > 1) hold_unchanged(QueryEffect(merging, h, merges, 0), largest, outcome);
  }
  hold_merges({MergedKey::zip, MergeGqa::mean, 0}, instance, merging, outcome);
  return outcome;
}

Outcome zip_of_singular(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const Shifted singular(merging, h, cluster, -merging.mean(h, cluster).mean_score);
    const Query after = singular.after(0);
    equal_vectors(outcome, "m = 0: a multiple of k- is lossless", after.output, singular.before.output,
                  singular.terms());
  });
  return outcome;
}

Outcome zip_of_normalised(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const Shifted raw(merging, h, cluster, 0), normalised(merging, h, cluster, -merging.log_denominator(h));
    if (!has_zip(normalised.mean)) return;
    // The key is scaled by the scale of the normalised scores, but the query's logits are not normalised.
    const Real scale = zip_scale(normalised.mean);
    const Query after = raw.after(scale * raw.mean.mean_score);
    equal_vectors(outcome, "built from ln s - LSE, it is lossless", after.output, raw.before.output,
                  (1 + abs(scale)) * raw.terms());
  });
  return outcome;
}

Outcome zip_is_positive(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const ClusterMean mean = merging.mean(h, cluster);
    if (has_zip(mean))
      outcome.at_most("0 <= z*/m", 0, zip_scale(mean), score_terms(merging.predicted(h, cluster)));
  });
  return outcome;
}

// ---- KKV-3'

// The largest distance of two members' keys.
Real diameter(const exact::Entries& members) {
  Real result = 0;
  for (const Reals& key : members.keys) {
    for (const Reals& other : members.keys)
      result = std::max<Real>(result, exact::norm(exact::difference(key, other), exact::Norm::l2));
  }
  return result;
}

void hold_correction(const MergingCase& merging, size_t head, const Cluster& cluster, Outcome& outcome) {
  const exact::Entries members = merging.cache.at(cluster);
  const ClusterMean mean = merging.mean(head, cluster);
  const Reals& query = merging.heads[head].queries.front();
  const Reals key = exact::min_norm_merge(mean, query).key;
  const Real length = exact::norm(exact::difference(key, mean.key), exact::Norm::l2);
  const Real size = exact::norm(query, exact::Norm::l2), apart = diameter(members);
  const Real share = *std::ranges::min_element(members.votes) / mean.votes, by_votes = -log(share);
  const Real terms =
      score_terms(merging.predicted(head, cluster)) / size + exact::norm(mean.key, exact::Norm::l2);
  const Real by_both = exact::divergence_per_range(share) * apart;
  outcome.equal("|| k_r - k- || = KL / || q ||", length, mean.divergence / size, terms);
  outcome.at_most("|| k_r - k- || <= ln(P / min p) / || q ||", length, by_votes / size, terms);
  outcome.at_most("|| k_r - k- || <= || q || diam(K)^2 / 8", length, size * apart * apart / 8, terms);
  outcome.at_most("|| k_r - k- || <= h(min p / P) diam(K)", length, by_both, terms + apart);
  outcome.ratio(length, std::min<Real>({by_votes / size, size * apart * apart / 8, by_both}), terms);
  if (mean.mean_score == 0 || mean.divergence == 0) return;
  const Real by_zip = exact::norm(exact::difference(exact::zip_merge(mean).key, mean.key), exact::Norm::l2);
  // z*/m divides by a sum that may nearly cancel, and multiplies another one, k-.
  const Real factors = (1 + abs(zip_scale(mean))) / std::min<Real>(1, abs(mean.mean_score));
  outcome.at_most("ZIP moves the key at least as far", length, by_zip,
                  terms + factors * score_terms(merging.predicted(head, cluster)) * merging.key_size());
}

// Claims that the key does not change when a constant is added to the log scores.
void hold_shift(const MergingCase& merging, size_t head, const Cluster& cluster, Outcome& outcome) {
  const exact::Entries members = merging.cache.at(cluster);
  const Reals scores = merging.predicted(head, cluster), &query = merging.heads[head].queries.front();
  const Reals key = exact::min_norm_merge({members, scores}, query).key;
  for (const Real& shift : {Real(-1000), Real("0.7")}) {
    const MergedEntry other = exact::min_norm_merge({members, shifted(scores, shift)}, query);
    equal_vectors(
        outcome, "a constant added to ln s changes no key", other.key, key,
        (score_terms(scores) + 1000) * (1 + merging.key_size() + 1 / exact::norm(query, exact::Norm::l2)));
  }
}

Outcome min_norm_is_lossless(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const Merges merges(merging, h, {cluster}, exact::min_norm_merge);
    hold_unchanged(QueryEffect(merging, h, merges, 0), 1, outcome);
    hold_correction(merging, h, cluster, outcome);
    hold_shift(merging, h, cluster, outcome);
  });
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    const Merges merges(merging, h, merging.clusters, exact::min_norm_merge);
    hold_unchanged(QueryEffect(merging, h, merges, 0), 1, outcome);
  }
  hold_merges({MergedKey::min_norm, MergeGqa::mean, 0}, instance, merging, outcome);
  return outcome;
}

// The factor of two entries of equal votes, whatever the votes are.
Outcome near_as_with_equal_votes(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  const Real factor = exact::divergence_per_range(0.5);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const Real size = exact::norm(merging.heads[h].queries.front(), exact::Norm::l2);
    const Real apart = diameter(merging.cache.at(cluster));
    outcome.at_most("|| k_r - k- || <= h(1/2) diam(K)", merging.mean(h, cluster).divergence / size,
                    factor * apart, score_terms(merging.predicted(h, cluster)) / size + apart);
  });
  return outcome;
}

// Claims that the outputs of a head's queries from `first_query` on do not change.
Outcome unchanged_by(const Instance& instance, MergeRule rule, size_t first_query) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const Merges merges(merging, h, {cluster}, rule);
    for (size_t i = first_query; i < merging.heads[h].queries.size(); ++i)
      hold_unchanged(QueryEffect(merging, h, merges, i), 1, outcome);
  });
  return outcome;
}

Outcome mean_key_is_lossless(const Instance& instance) { return unchanged_by(instance, convex_merge, 0); }
Outcome lossless_for_later_queries(const Instance& instance) {
  return unchanged_by(instance, exact::min_norm_merge, 1);
}

// ---- KKV-6

// The instance with every member's logits replaced by those of the cluster's kept
// entry; values are unchanged.
Instance with_equal_keys(Instance instance) {
  for (const Cluster& cluster : clusters_of(instance)) {
    for (const int64_t member : cluster) {
      for (int64_t r = 0; r < instance.logits.rows(); ++r)
        instance.logits(r, member) = instance.logits(r, cluster.front());
    }
  }
  return instance;
}

Instance with_equal_values(Instance instance) {
  for (const Cluster& cluster : clusters_of(instance)) {
    for (const int64_t member : cluster) {
      const VectorView value = instance.values.view().row(cluster.front());
      std::ranges::copy(value, instance.values.row(member).begin());
    }
  }
  return instance;
}

// Claims that no query's output changes when all clusters merge, separately for each head.
void hold_for_all_queries(const Instance& instance, MergeRule rule, Outcome& outcome) {
  const MergingCase merging(instance);
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    const Merges merges(merging, h, merging.clusters, rule);
    for (size_t i = 0; i < merging.heads[h].queries.size(); ++i)
      hold_unchanged(QueryEffect(merging, h, merges, i), 1, outcome);
  }
}

Outcome predicted_exactly(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    const Merges merges(merging, h, merging.clusters, exact::min_norm_merge);
    const QueryEffect effect(merging, h, merges, 0);
    outcome.equal("the first query's scores are predicted exactly: epsilon = 0", effect.epsilon(), 0,
                  effect.logit_terms());
    hold_unchanged(effect, 1, outcome);
  }
  const Instance agreed = with_equal_keys(instance);
  for (const MergeRule rule :
       {MergeRule(exact::min_norm_merge), MergeRule(zip_merge), MergeRule(convex_merge)})
    hold_for_all_queries(agreed, rule, outcome);
  hold_merges({MergedKey::min_norm, MergeGqa::mean, 0}, agreed, MergingCase(agreed), outcome);
  hold_merges({MergedKey::zip, MergeGqa::mean, 0}, agreed, MergingCase(agreed), outcome);
  return outcome;
}

Outcome equal_values_are_enough(const Instance& instance) {
  Outcome outcome;
  hold_for_all_queries(with_equal_values(instance), exact::min_norm_merge, outcome);
  return outcome;
}

// Predictions that differ as a moving average's may: the kept entry has been seen by more queries.
Outcome equal_keys_predicted_apart(const Instance& instance) {
  Outcome outcome;
  MergingCase merging(with_equal_values(with_equal_keys(instance)));
  for (const Cluster& cluster : merging.clusters) {
    for (MergingHead& head : merging.heads) head.predicted[cluster.front()] += 1;
  }
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    const Merges merges(merging, h, merging.clusters, exact::min_norm_merge);
    hold_unchanged(QueryEffect(merging, h, merges, 0), 1, outcome);
  }
  return outcome;
}

}  // namespace

std::vector<Theorem> lossless_theorems() {
  return {
      {.id = "kkv-3",
       .title = "ZIP-merging, and where there is none",
       .statement = "k_r = k- z*/m, v_r = v-, p_r = P leaves o as it was for a query whose raw scores "
                    "are the s that it was built from; if m = 0, every multiple of k- moves o by A'_r (1 "
                    "- e^-KL) (v- - o)",
       .hypotheses = "m != 0 or KL = 0 (then z*/m stands for 1)",
       .source = kKeepKv + "; the condition and what is lost without it: ours",
       .ratio = "",
       .sizes = kMergingSizes,
       .property = {"kkv-3", "ZIP loses nothing if it is defined", zip_is_lossless},
       .weakened = {{"kkv-3:singular", "m = 0 < KL: a multiple of k- loses nothing", zip_of_singular},
                    {"kkv-3:shifted", "the same if it is built from normalised scores", zip_of_normalised},
                    {"kkv-3:positive-scale", "the key keeps its direction: z*/m >= 0", zip_is_positive}}},
      {.id = "kkv-3-prime",
       .title = "merging by minimum norm",
       .statement =
           "k_r = k- - KL q / (scale ||q||^2), v_r = v-, p_r = P leaves o as it was for q, whatever "
           "constant is added to ln s; || k_r - k- || = KL / (scale ||q||) <= ln(P / min p) / (scale "
           "||q||), <= scale ||q|| diam(K)^2 / 8 and <= h(min p / P) diam(K) < diam(K), h of kkv-kl, and no "
           "key nearer to k- will do",
       .hypotheses = "q != 0; scores of q up to one factor",
       .source = "ours",
       .ratio = "|| k_r - k- || / the smallest bound",
       .sizes = kMergingSizes,
       .property = {"kkv-3-prime", "merging by minimum norm loses nothing", min_norm_is_lossless},
       .weakened = {{"kkv-3-prime:mean-key", "k- itself loses nothing", mean_key_is_lossless},
                    {"kkv-3-prime:later-query", "later queries lose nothing either",
                     lossless_for_later_queries},
                    {"kkv-3-prime:equal-votes", "|| k_r - k- || <= h(1/2) diam(K) whatever the votes",
                     near_as_with_equal_votes}}},
      {.id = "kkv-6",
       .title = "when later queries lose nothing",
       .statement = "o' = o if epsilon = 0; and, for every query and with any of the keys, if the "
                    "members of each cluster have the same key and the same predicted score",
       .hypotheses = "those; values may differ",
       .source = kKeepKv + "; that values may differ: ours",
       .ratio = "",
       .sizes = kMergingSizes,
       .property = {"kkv-6", "nothing is lost of what is predicted exactly, nor of equal keys",
                    predicted_exactly},
       .weakened = {{"kkv-6:equal-values", "the same of members that share their value instead",
                     equal_values_are_enough},
                    {"kkv-6:predicted-apart",
                     "the same of members alike in key and value that are predicted differently",
                     equal_keys_predicted_apart}}},
  };
}

}  // namespace kvbound::proofs
