// CaM's changes of values, with the other weights held fixed and recomputed: KeepKV's appendix C.2.
#include <algorithm>

#include <kvbound/reference/merging/cam.hpp>

#include "catalogue.hpp"
#include "combination.hpp"
#include "merge_rounding.hpp"
#include "papers.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::Entries;
using exact::Query;
using exact::Real;
using exact::Reals;
using Positions = std::vector<int64_t>;

// The factors with which CaM changes nothing while the weights are held fixed: A_e over the mean of A over
// the entries that share v_e. (CaM spreads a value with this probability, and at most 1.)
Reals balancing(const Seen& seen) {
  const Positions& kept = seen.instance.kept;
  const Reals attention = seen.over(seen.merging.cache).attention, of_kept = oracle::at(attention, kept);
  Reals factors(attention.size());
  for (const int64_t e : all_but(seen.instance, kept)) {
    const Positions shares = sharing(kept, e);
    const Real& weight = attention[e];
    factors[e] = weight * std::ssize(shares) / oracle::sum(oracle::at(of_kept, shares));
  }
  return factors;
}

// A query's outputs, before W^O: before CaM spreads evicted values, after it with the kept entries' weights
// held fixed, and after it recomputed.
struct Spread {
  Spread(const Seen& seen, const Reals& factors) {
    const Positions& kept = seen.instance.kept;
    const Entries& cache = seen.merging.cache;
    const Entries compressed = spread(seen, factors);
    const Query original = seen.over(cache);
    const Reals weights = oracle::at(original.attention, kept);
    before = original.output;
    held = oracle::weighted_sum(weights, compressed.values);
    recomputed = seen.over(compressed).output;
    kept_mass = oracle::sum(weights);
    evicted_mass = oracle::sum(oracle::outside(original.attention, kept));
    terms = seen.merging.value_terms(seen.head, Space::head);
  }

  Reals before, held, recomputed;
  Real kept_mass, evicted_mass;
  Real
      terms;  // absolute terms that are rounded to 50 digits in `before` and `held`, and Sigma times those in
              // `recomputed`
};

void hold_spread_probabilities(const Instance& instance, const Seen& seen, Outcome& outcome) {
  std::vector<double> attention;
  for (const Real& weight : seen.over(seen.merging.cache).attention)
    attention.push_back(static_cast<double>(weight));
  for (const int64_t e : all_but(instance, instance.kept)) {
    std::vector<double> following;
    for (const int64_t i : sharing(instance.kept, e)) following.push_back(attention[instance.kept[i]]);
    const oracle::Row exact = oracle::exactly(VectorView(following));
    const oracle::Bounded mean = oracle::sum(exact) / oracle::Bounded(static_cast<double>(following.size()));
    if (!(mean.value > 4 * mean.bound)) continue;
    const oracle::Bounded ratio = oracle::Bounded(attention[e]) / mean;
    outcome.reference_within("the probability of spreading",
                             reference::spread_probability(attention[e], following),
                             {std::min<Real>(1, ratio.value), ratio.bound});
  }
}

Outcome cam_moves_by_the_evicted_mass(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_seen(instance, merging, [&](const Seen& seen) {
    const Spread whole(seen, Reals(merging.cache.count(), Real(1)));
    equal_vectors(outcome, "recomputed, CaM's output is that with fixed weights over Sigma", whole.recomputed,
                  exact::scaled(1 / whole.kept_mass, whole.held), whole.terms / whole.kept_mass);
    const Spread balanced(seen, balancing(seen));
    equal_vectors(outcome, "with fixed weights, o' = o", balanced.held, balanced.before, balanced.terms);
    equal_vectors(outcome, "recomputed, o' - o = (e / Sigma) o",
                  exact::difference(balanced.recomputed, balanced.before),
                  exact::scaled(balanced.evicted_mass / balanced.kept_mass, balanced.before),
                  balanced.terms / balanced.kept_mass);
    hold_spread_probabilities(instance, seen, outcome);
  });
  hold_attention(instance, merging, outcome);
  return outcome;
}

Outcome lossless_with_fixed_weights(const Instance& instance) {
  Outcome outcome;
  const MergingCase merging(instance);
  for_each_seen(instance, merging, [&](const Seen& seen) {
    const Spread balanced(seen, balancing(seen));
    equal_vectors(outcome, "recomputed, o' = o", balanced.recomputed, balanced.before,
                  balanced.terms / balanced.kept_mass);
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> cam_theorems() {
  return {
      {.id = "kkv-c.2",
       .title = "CaM's change with fixed weights, and recomputed",
       .statement =
           "if the kept entries' values change and their keys do not, as by CaM, the output over the "
           "compressed cache is that with the weights A held fixed, over Sigma; so if nothing moves with "
           "fixed weights, o' - o = (e / Sigma) o",
       .hypotheses = "an entry is kept",
       .source = kKeepKv + ", appendix C.2; how far the output moves: ours",
       .ratio = "",
       .sizes = kMergingSizes,
       .property = {"kkv-c.2", "CaM's output, recomputed, is that with fixed weights over Sigma",
                    cam_moves_by_the_evicted_mass},
       .weakened = {{"kkv-c.2:fixed-weights", "if nothing moves with fixed weights, nothing moves",
                     lossless_with_fixed_weights}}},
  };
}

}  // namespace kvbound::proofs
