// The attention of a merged entry: with one vote, less than its cluster had; with all
// votes and the mean key, more.
#include <algorithm>

#include <kvbound/proofs/engine/merge_prediction.hpp>

#include "catalogue.hpp"
#include "merge_rounding.hpp"
#include "papers.hpp"

namespace kvbound::proofs {
namespace {

using exact::ClusterMean;
using exact::MergedEntry;
using exact::Query;
using exact::Real;
using exact::Reals;

// ---- KKV-2

// A query's logits of a cluster's members, and the total weights p exp(z) of the cluster and of the other
// entries, relative to the weight of the cluster's heaviest member.
struct Weighed {
  Weighed(const MergingCase& merging, size_t head, size_t query, const Cluster& cluster) {
    const Reals all = merging.logits(head, query);
    Reals voted;
    for (size_t j = 0; j < all.size(); ++j) voted.push_back(all[j] + log(merging.cache.votes[j]));
    heaviest = voted[cluster.front()];
    for (const int64_t member : cluster) {
      logits.push_back(all[member]);
      heaviest = std::max<Real>(heaviest, voted[member]);
    }
    Reals weights;
    for (const Real& logit : voted) weights.push_back(exp(logit - heaviest));
    whole = oracle::sum(oracle::at(weights, cluster));
    Cluster others(cluster);
    others.erase(std::ranges::find(others, heaviest, [&](int64_t member) { return voted[member]; }));
    lighter = oracle::sum(oracle::at(weights, others));
    rest = oracle::sum(oracle::outside(weights, cluster));
  }

  // The attention of an entry with this weight in place of the cluster.
  Real attention(const Real& weight) const { return weight / (rest + weight); }
  // attention(whole) - attention(1), without cancellation.
  Real gap() const { return rest * lighter / ((rest + whole) * (rest + 1)); }

  Reals logits;
  Real heaviest;  // ln of the heaviest member's weight
  Real whole, rest;
  Real lighter;  // whole - 1, as a sum without cancellation
};

// The weights, of sum 1, with which merging methods average the members.
std::vector<Reals> convex_weights(const MergingCase& merging, size_t head, const Cluster& cluster) {
  const exact::Entries members = merging.cache.at(cluster);
  return {Reals(cluster.size(), Real(1) / std::ssize(cluster)), exact::similarity_weights(members.keys),
          exact::gaussian_weights(members.keys), exact::softmax(merging.predicted(head, cluster)),
          merging.mean(head, cluster).weights};
}

// Calls look(weights, logit) with a cluster's weights for a query and the logit of a convex
// combination of its keys.
template <class Look>
void for_each_convex_merge(const MergingCase& merging, const Look& look) {
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    for (size_t i = 0; i < merging.heads[h].queries.size(); ++i) {
      const Weighed weighed(merging, h, i, cluster);
      for (const Reals& weights : convex_weights(merging, h, cluster))
        look(weighed, oracle::dot(weights, weighed.logits));
    }
  });
}

Outcome attention_sags(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_convex_merge(merging, [&](const Weighed& weighed, const Real& logit) {
    if (weighed.rest == 0) return;
    const Real weight = exp(logit - weighed.heaviest), terms = score_terms(weighed.logits) * 16;
    const Real cluster = weighed.attention(weighed.whole), bound = weighed.attention(1);
    outcome.at_most("the merged entry weighs no more than the heaviest member did", weight, 1, terms);
    outcome.at_most("A_r <= max A / (max A + A_rest)", weighed.attention(weight), bound, terms);
    outcome.equal("sum of A - max A / (max A + A_rest)", cluster - bound, weighed.gap(), terms);
    outcome.require("max A / (max A + A_rest) < sum of A", weighed.gap() > 0);
    outcome.ratio(weighed.attention(weight), bound, terms);
  });
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const ClusterMean mean = merging.mean(h, cluster);
    const Weighed weighed(merging, h, 0, cluster);
    const Real weight = mean.votes * exp(mean.mean_score - weighed.heaviest);
    outcome.at_most("with all votes and weights p s, A_r >= sum of A", weighed.attention(weighed.whole),
                    weighed.attention(weight), score_terms(weighed.logits) * 16);
  });
  hold_convex_weights(merging, outcome);
  return outcome;
}

Outcome output_moves(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (const Cluster& cluster : merging.clusters) {
      if (cluster.size() == merging.cache.count()) continue;
      Merges merges(merging, h, {cluster}, [](const ClusterMean& mean, const Reals&) {
        return MergedEntry{mean.key, mean.value, 1};
      });
      const QueryEffect effect(merging, h, merges, 0);
      outcome.below("0 < || o' - o ||", 0, exact::norm(effect.change(Space::head), exact::Norm::l2),
                    effect.terms(Space::head));
    }
  }
  return outcome;
}

Outcome sags_with_votes(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const ClusterMean mean = merging.mean(h, cluster);
    const Weighed weighed(merging, h, 0, cluster);
    const Real weight = mean.votes * exp(mean.mean_score - weighed.heaviest);
    if (weighed.rest > 0)
      outcome.at_most("A_r <= sum of A", weighed.attention(weight), weighed.attention(weighed.whole),
                      score_terms(weighed.logits) * 16);
  });
  return outcome;
}

Outcome sags_if_all_merge(const Instance& instance) {
  Outcome outcome;
  for_each_convex_merge(MergingCase(instance), [&](const Weighed& weighed, const Real& logit) {
    if (weighed.rest > 0) return;
    outcome.below("A_r < sum of A", weighed.attention(exp(logit - weighed.heaviest)),
                  weighed.attention(weighed.whole), 1);
  });
  return outcome;
}

// ---- KKV-KL

Real range(const Reals& numbers) {
  return *std::ranges::max_element(numbers) - *std::ranges::min_element(numbers);
}

// min p / P
Real smallest_share(const exact::Entries& members) {
  return *std::ranges::min_element(members.votes) / oracle::sum(members.votes);
}

Outcome divergence_is_the_excess(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const Reals scores = merging.predicted(h, cluster);
    const ClusterMean mean = merging.mean(h, cluster);
    const Real terms = score_terms(scores), spread = range(scores);
    const Real share = smallest_share(merging.cache.at(cluster));
    const Real by_votes = -log(share), by_range = spread * spread / 8,
               by_both = exact::divergence_per_range(share) * spread;
    outcome.equal("m - z* = KL(w/W || p/P)", mean.mean_score - mean.target, mean.divergence, terms);
    outcome.at_most("0 <= KL", 0, mean.divergence, terms);
    outcome.at_most("KL <= ln(P / min p)", mean.divergence, by_votes, terms);
    outcome.at_most("KL <= (max ln s - min ln s)^2 / 8", mean.divergence, by_range, terms);
    outcome.at_most("KL <= h(min p / P) (max ln s - min ln s)", mean.divergence, by_both, terms);
    outcome.ratio(mean.divergence, std::min<Real>({by_votes, by_range, by_both}), terms);
  });
  hold_cluster_means(instance, merging, outcome);
  return outcome;
}

Outcome divergence_is_positive(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    outcome.below("0 < KL", 0, merging.mean(h, cluster).divergence,
                  score_terms(merging.predicted(h, cluster)));
  });
  return outcome;
}

Outcome mean_by_votes_is_enough(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const Reals scores = merging.predicted(h, cluster);
    const ClusterMean mean = merging.mean(h, cluster);
    const Real by_votes = oracle::dot(merging.cache.at(cluster).votes, scores) / mean.votes;
    outcome.at_most("z* <= sum (p/P) ln s", mean.target, by_votes, score_terms(scores));
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> keep_kv_theorems() {
  return {
      {.id = "kkv-2",
       .title = "attention sag",
       .statement = "if a cluster merges into one entry with one vote and a convex combination of the "
                    "keys, A_r <= max A / (max A + A_rest) < sum of A, the maximum over the cluster; with "
                    "all votes and the weights p s / W it is A_r >= sum of A",
       .hypotheses = "votes >= 1, two members at least, another entry is there",
       .source = kKeepKv + "; the bound by the heaviest member: ours",
       .ratio = "A_r / bound",
       .sizes = kMergingSizes,
       .property = {"kkv-2", "a convex merge weighs at most what its heaviest member did", attention_sags},
       .weakened = {{"kkv-2:output-moves", "|| o' - o || > 0", output_moves},
                    {"kkv-2:all-votes", "the same with all votes and the weights p s / W", sags_with_votes},
                    {"kkv-2:whole-cache", "A_r < sum of A if the whole cache merges", sags_if_all_merge}}},
      {.id = "kkv-kl",
       .title = "the mean key's logit is KL too large",
       .statement =
           "m - z* = KL(w/W || p/P) >= 0, and KL <= ln(P / min p), KL <= R^2 / 8 and KL <= h(min p / P) R, "
           "R = max ln s - min ln s, h(rho) = max_x (sigma - ln(W) / x), W = 1 - rho + rho e^x, sigma = rho "
           "e^x / W",
       .hypotheses = "none",
       .source = "ours",
       .ratio = "KL / the smallest bound",
       .sizes = kMergingSizes,
       .property = {"kkv-kl", "m - z* is the divergence, within its bounds", divergence_is_the_excess},
       .weakened = {{"kkv-kl:strict", "KL > 0", divergence_is_positive},
                    {"kkv-kl:mean-by-votes", "the mean of ln s by votes alone is at least z*, too",
                     mean_by_votes_is_enough}}},
  };
}

}  // namespace kvbound::proofs
