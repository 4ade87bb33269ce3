#include "regime.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <kvbound/proofs/oracle/exact.hpp>

#include "merge_prediction.hpp"
#include "merging_case.hpp"

namespace kvbound::proofs {
namespace {

using exact::Real;
using Positions = std::vector<int64_t>;

// ---- regimes of eviction

// Whether for some query the attention mass of these entries satisfies the predicate. The mass is computed in
// 50 digits, because the double reference is under test.
template <class Predicate>
bool any_mass(const Instance& instance, const Positions& entries, const Predicate& predicate) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    if (predicate(oracle::sum(oracle::at(exact::softmax(instance.logits.row(r)), entries)))) return true;
  }
  return false;
}

// Whether for some query all entries but the one of largest weight hold a mass above 0 and below 1e-12.
bool is_dominated(const Instance& instance) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    const exact::Reals weights = exact::softmax(instance.logits.row(r));
    const Positions largest{std::ranges::max_element(weights) - weights.begin()};
    const Real others = oracle::sum(oracle::outside(weights, largest));
    if (0 < others && others < Real("1e-12")) return true;
  }
  return false;
}

bool has_twins(const Instance& instance) {
  const Positions candidates = all_but(instance, instance.stage_one);
  for (size_t i = 0; i < candidates.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (twins(instance, candidates[i], candidates[j])) return true;
    }
  }
  return false;
}

// ---- regimes of merging

// Whether the predicate holds for some head's mean of some
// cluster; `equal` says whether the cluster's scores are equal.
template <class Predicate>
bool any_cluster(const Instance& instance, const Predicate& predicate) {
  const MergingCase merging(instance);
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (const Cluster& cluster : merging.clusters) {
      const exact::Reals scores = merging.predicted(h, cluster);
      const bool equal =
          std::ranges::all_of(scores, [&](const Real& score) { return score == scores.front(); });
      if (predicate(merging.mean(h, cluster), equal)) return true;
    }
  }
  return false;
}

bool has_parallel_queries(const Matrix& vectors) {
  const exact::Vectors rows = exact::vectors(vectors);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Real product = oracle::dot(rows[i], rows[j]);
      const Real cosine = Real("0.9999");
      if (product * product > cosine * cosine * exact::squared(rows[i]) * exact::squared(rows[j]))
        return true;
    }
  }
  return false;
}

}  // namespace

const char* name(Regime regime) {
  switch (regime) {
    case Regime::small_stage_one:
      return "sigma < 1/2";
    case Regime::almost_nothing_evicted:
      return "evicted < 1e-12";
    case Regime::dominated:
      return "A > 1 - 1e-12";
    case Regime::tied:
      return "ties";
    case Regime::empty_stage_two:
      return "stage 2 empty";
    case Regime::single_kept:
      return "one kept";
    case Regime::nearly_singular:
      return "|m| < KL/1e6";
    case Regime::nearly_agreed:
      return "0 < KL < 1e-12";
    case Regime::agreed:
      return "KL = 0";
    case Regime::huge_logits:
      return "|z| > 5000";
    case Regime::many_votes:
      return "votes >= 1e5";
    case Regime::parallel_queries:
      return "parallel queries";
    case Regime::predicted:
      return "epsilon < 1";
  }
  return "";  // not reached
}

bool shows(const Instance& instance, Regime regime) {
  const bool of_merging = std::ranges::find(kEvictionRegimes, regime) == std::end(kEvictionRegimes);
  if (of_merging && !instance.merges()) return false;
  switch (regime) {
    case Regime::small_stage_one:
      return any_mass(instance, instance.stage_one, [](const Real& mass) { return 2 * mass < 1; });
    case Regime::almost_nothing_evicted:
      return any_mass(instance, all_but(instance, instance.kept),
                      [](const Real& mass) { return 0 < mass && mass < Real("1e-12"); });
    case Regime::dominated:
      return is_dominated(instance);
    case Regime::tied:
      return has_twins(instance);
    case Regime::empty_stage_two:
      return instance.stage_one == instance.kept;
    case Regime::single_kept:
      return instance.kept.size() == 1;
    case Regime::nearly_singular:
      return any_cluster(instance, [](const exact::ClusterMean& mean, bool equal) {
        return !equal && 1000000 * abs(mean.mean_score) < mean.divergence;
      });
    case Regime::nearly_agreed:
      return any_cluster(instance, [](const exact::ClusterMean& mean, bool equal) {
        return !equal && mean.divergence < Real("1e-12");
      });
    case Regime::agreed:
      return any_cluster(instance, [](const exact::ClusterMean&, bool equal) { return equal; });
    case Regime::huge_logits:
      return std::ranges::any_of(instance.logits.numbers(),
                                 [](double logit) { return std::abs(logit) > 5000; });
    case Regime::many_votes:
      return std::ranges::any_of(instance.votes, [](double votes) { return votes >= 1e5; });
    case Regime::parallel_queries:
      return has_parallel_queries(instance.query_vectors);
    case Regime::predicted:
      return any_predicted(MergingCase(instance));
  }
  return false;  // not reached
}

}  // namespace kvbound::proofs
