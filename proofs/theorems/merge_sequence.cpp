// Sequences of merges.
#include <algorithm>

#include <kvbound/proofs/engine/merge_prediction.hpp>

#include "catalogue.hpp"
#include "merge_rounding.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::ClusterMean;
using exact::Entries;
using exact::MergedEntry;
using exact::Norm;
using exact::Query;
using exact::Real;
using exact::Reals;

// A head's cache and predicted scores, while its entries merge one pair at a time.
struct SequentialMerge {
  SequentialMerge(const MergingCase& merging, size_t head_)
      : head(merging.heads[head_]), cache(merging.cache), predicted(head.predicted) {}

  // Replaces two entries by their merged entry, which comes last.
  void merge(const Cluster& pair, MergeRule rule) {
    const Entries members = cache.at(pair);
    const ClusterMean mean(members, {at(predicted, pair[0]), at(predicted, pair[1])});
    cache = exact::with_merged(cache, {pair}, {rule(mean, head.queries.front())});
    for (const int64_t member : {std::max(pair[0], pair[1]), std::min(pair[0], pair[1])})
      predicted.erase(predicted.begin() + member);
    predicted.push_back(mean.target);
  }
  Reals output(size_t query, Space space) const {
    const Reals logits = exact::logits(head.queries[query], cache.keys);
    return head.in(space, exact::attention(logits, cache.votes, cache.values).output);
  }
  static const Real& at(const Reals& numbers, int64_t index) { return numbers[index]; }

  const MergingHead& head;
  Entries cache;
  Reals predicted;
};

Real terms_of(const MergingCase& merging, size_t head, Space space, const SequentialMerge& sequence) {
  Real logit = merging.logit_terms(head);
  for (const Reals& query : sequence.head.queries) {
    for (const Reals& key : sequence.cache.keys)
      logit = std::max<Real>(logit, absolute_terms(query, key) + absolute_terms(query, query));
  }
  return 16 * merging.value_terms(head, space) * logit;
}

// Merges the two last entries of the cache until one is left, and calls
// look(the cache before, the cache after).
template <class Look>
void fold(SequentialMerge sequence, const Look& look) {
  while (sequence.cache.count() > 1) {
    const SequentialMerge before = sequence;
    const auto count = static_cast<int64_t>(sequence.cache.count());
    sequence.merge({count - 2, count - 1}, exact::min_norm_merge);
    look(before, sequence);
  }
}

// Merges a cluster one entry at a time: its first two entries, then the result with the third, ...
SequentialMerge one_by_one(const MergingCase& merging, size_t head, const Cluster& cluster, MergeRule rule) {
  SequentialMerge sequence(merging, head);
  Cluster left(cluster);
  while (left.size() > 1) {
    // Indices above a removed member decrease by 1; the merged entry is the last.
    std::vector<int64_t> pair{left[0], left[1]};
    sequence.merge(pair, rule);
    left.erase(left.begin(), left.begin() + 2);
    for (int64_t& member : left)
      member -= std::ranges::count_if(pair, [&](int64_t gone) { return gone < member; });
    left.insert(left.begin(), static_cast<int64_t>(sequence.cache.count()) - 1);
  }
  return sequence;
}

void hold_same_key(const MergingCase& merging, size_t head, const Cluster& cluster, MergeRule rule,
                   const Real& factor, Outcome& outcome) {
  const ClusterMean mean = merging.mean(head, cluster);
  const MergedEntry at_once = rule(mean, merging.heads[head].queries.front());
  const SequentialMerge sequence = one_by_one(merging, head, cluster, rule);
  const Real& size = exact::squared(merging.heads[head].queries.front());
  const Real terms =
      factor * score_terms(merging.predicted(head, cluster)) * (1 + merging.key_size() + 1 / size);
  equal_vectors(outcome, "one by one, the key is that of all at once", sequence.cache.keys.back(),
                at_once.key, terms);
  equal_vectors(outcome, "one by one, the value is that of all at once", sequence.cache.values.back(),
                at_once.value, terms * (1 + merging.value_terms(head, Space::head)));
  outcome.equal("one by one, the votes are those of all at once", sequence.cache.votes.back(), at_once.votes,
                terms);
  outcome.equal("one by one, the prediction is that of all at once", sequence.predicted.back(), mean.target,
                terms);
}

// ---- KKV-sequence

Outcome changes_add_up(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (size_t i = 0; i < merging.heads[h].queries.size(); ++i) {
      for (const Space space : kSpaces) {
        const SequentialMerge whole(merging, h);
        const Reals first = whole.output(i, space);
        Real sums[std::size(exact::kNorms)];
        fold(whole, [&](const SequentialMerge& before, const SequentialMerge& after) {
          const Reals step = exact::difference(after.output(i, space), before.output(i, space));
          const Reals moved = exact::difference(after.output(i, space), first);
          const Real terms = terms_of(merging, h, space, after);
          for (const Norm norm : exact::kNorms) {
            Real& sum = sums[static_cast<size_t>(norm)];
            sum += exact::norm(step, norm);
            outcome.at_most("|| o_T - o_0 || <= sum || o_t - o_(t-1) ||", exact::norm(moved, norm), sum,
                            terms * static_cast<int64_t>(whole.cache.count()));
            outcome.ratio(exact::norm(moved, norm), sum, terms * static_cast<int64_t>(whole.cache.count()));
          }
        });
      }
    }
    for (const Cluster& cluster : merging.clusters)
      hold_same_key(merging, h, cluster, exact::min_norm_merge, 1, outcome);
  }
  hold_chains(instance, merging, outcome);
  return outcome;
}

// Every merge applied to the first cache, without the merges before it.
Outcome changes_against_the_first(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for (size_t h = 0; h < merging.heads.size() && !merging.clusters.empty(); ++h) {
    for (size_t i = 0; i < merging.heads[h].queries.size(); ++i) {
      Real sum = 0, terms = 0;
      for (const Cluster& cluster : merging.clusters) {
        const Merges merges(merging, h, {cluster}, exact::min_norm_merge);
        const QueryEffect effect(merging, h, merges, i);
        sum += exact::norm(effect.change(Space::head), Norm::l2);
        terms += effect.terms(Space::head);
      }
      const Merges merges(merging, h, merging.clusters, exact::min_norm_merge);
      const QueryEffect all(merging, h, merges, i);
      outcome.at_most("|| o_T - o_0 || <= sum of what each merge would do to the first cache",
                      exact::norm(all.change(Space::head), Norm::l2), sum, terms + all.terms(Space::head));
    }
  }
  return outcome;
}

Outcome zip_one_by_one(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    hold_same_key(merging, h, cluster, zip_merge, Real("1e9"), outcome);
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> merge_sequence_theorems() {
  return {
      {.id = "kkv-sequence",
       .title = "merges one after the other",
       .statement =
           "|| o_T - o_0 || <= sum_t || o_t - o_(t-1) ||, each bounded by kkv-5 against the cache before "
           "that merge; merged by minimum norm for one query, a cluster becomes the same entry one by one "
           "as all at once",
       .hypotheses = "the merged entry is predicted by ln(W / P)",
       .source = "ours",
       .ratio = "|| o_T - o_0 || / sum",
       .sizes = kMergingSizes,
       .property = {"kkv-sequence", "changes add up, and the order is of no matter", changes_add_up},
       .weakened = {{"kkv-sequence:against-the-first",
                     "the same with each merge taken against the first cache", changes_against_the_first},
                    {"kkv-sequence:zip", "ZIP, too, gives the same entry one by one", zip_one_by_one}}},
  };
}

}  // namespace kvbound::proofs
