#include "critical_eviction.hpp"

#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::sim {

std::optional<Fault> CriticalEviction::fault(const std::vector<int64_t>& kept) const {
  const BoundedScores second = stage_two();
  const int64_t k = std::ssize(candidates.entries) - (place.stepper.cache().entries() - place.budget);
  const CountRange counts = stage_one_range(options, k, [&] { return adaptive_range(k); });
  return critical_fault(scores.view(), second.view(), kept, counts);
}

BoundedScores CriticalEviction::stage_two() const {
  const reference::HeadEviction& eviction = place.stepper.eviction();
  const Matrix own = reference::columns_of(eviction.head_scores(), candidates.entries);
  const Matrix norms = reference::columns_of(eviction.norms(), candidates.entries);
  return {reference::stage_two_scores(own, norms, options.epsilon, options.gqa),
          reference::stage_two_score_errors(own, score_errors, norms, norm_errors, options.epsilon,
                                            options.gqa, arithmetic)};
}

CountRange CriticalEviction::adaptive_range(int64_t k) const {
  const reference::HeadCache& cache = place.stepper.cache();
  const std::vector<RankRange> ranks = rank_ranges(scores.view());
  std::vector<int64_t> always_kept;
  for (int64_t entry = 0; entry < cache.entries(); ++entry) {
    if (place.rules.always_keeps(cache.positions[entry], place.stepper.newest()))
      always_kept.push_back(entry);
  }
  const StepWeights step = weights();
  const double adding = reference::sum_rounding(cache.entries(), arithmetic.in_any_order());
  CountRange all{0, 0};
  for (int64_t h = 0; h < step.weights.rows(); ++h) {
    all = CountRange::most(all, adaptive_counts(step.weights.row(h), step.errors.row(h), always_kept,
                                                candidates.entries, ranks, k, adding));
  }
  return all;
}

}  // namespace kvbound::sim
