#include "summary.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/sim/measure/median.hpp>

namespace kvbound::sim {

std::optional<double> Median::value() const {
  return values.empty() ? std::nullopt : std::optional(median(values));
}

namespace {

void add_merges(MergeSummary& summary, const MergeMetrics& metrics, int64_t layer) {
  summary.counts += metrics.counts;
  for (const MergeChange& change : metrics.changes) {
    summary.perturbation.add(change.perturbation);
    summary.max_perturbation = larger(summary.max_perturbation, change.perturbation);
    if (change.rounding) ++summary.lossless;
    if (!change.violates()) continue;
    ++summary.violations;
    if (!summary.first_violation) summary.first_violation = Place{layer, change.step, change.query_head};
  }
  for (const reference::ClusterChange& cluster : metrics.clusters) {
    summary.cluster_merged.add(cluster.merged);
    summary.cluster_evicted.add(cluster.evicted);
    summary.cluster_floor.add(cluster.floor);
  }
}

// Adds one step of one query head. Undefined figures are not applicable there and are skipped, not counted.
void add_later(LaterSummary& summary, const LaterQueries& later, int64_t t, int64_t h) {
  const auto add = [&](auto& to, const Matrix& figures) {
    if (!std::isnan(figures(t, h))) to.add(figures(t, h));
  };
  add(summary.perturbation, later.perturbation);
  add(summary.sag, later.sag);
  add(summary.value_distance, later.value_distance);
  add(summary.variation_bound, later.variation_bound);
  if (std::isnan(later.prediction_error(t, h))) return;
  ++summary.predicted;
  if (!(later.prediction_error(t, h) < 1)) return;
  ++summary.predictable;
  add(summary.prediction_error, later.prediction_error);
  add(summary.bound, later.bound);
  add(summary.shared_bound, later.shared_bound);
  add(summary.joint_bound, later.joint_bound);
}

void add_later(LaterSummary& summary, const LaterQueries& later, int64_t layer) {
  for (int64_t t = 0; t < later.perturbation.rows(); ++t) {
    for (int64_t h = 0; h < later.perturbation.cols(); ++h) add_later(summary, later, t, h);
  }
  summary.violations += std::ssize(later.violations);
  if (!summary.first_violation && !later.violations.empty()) {
    summary.first_violation =
        Place{layer, later.violations.front().step, later.violations.front().query_head};
  }
}

void add_bound(Summary& summary, double perturbation, double bound, const Place& place) {
  const double tightness = ratio(perturbation, bound);
  summary.bound.add(bound);
  summary.tightness.add(tightness);
  if (tightness > summary.max_tightness) {
    summary.max_tightness = tightness;
    summary.tightest = place;
  }
}

}  // namespace

Summary summarise(const RunResult& run, const Scope& scope) {
  Summary summary;
  for (size_t l = 0; l < run.layers.size(); ++l) {
    const LayerMetrics& metrics = run.layers[l];
    summary.bounded = summary.bounded || metrics.bound;
    for (const double share : metrics.recall) summary.recall.add(share);
    if (metrics.merges) {
      if (!summary.merges) summary.merges.emplace();
      add_merges(*summary.merges, *metrics.merges, scope.layers[l]);
      if (metrics.merges->later) {
        if (!summary.later) summary.later.emplace();
        add_later(*summary.later, *metrics.merges->later, scope.layers[l]);
      }
    }
    for (int64_t t = 0; t < metrics.perturbation.rows(); ++t) {
      for (int64_t h = 0; h < metrics.perturbation.cols(); ++h) {
        const Place place{scope.layers[l], t, h};
        summary.perturbation.add(metrics.perturbation(t, h));
        summary.relative.add(metrics.relative(t, h));
        summary.kept_mass.add(metrics.kept_mass(t, h));
        if (metrics.bound) add_bound(summary, metrics.perturbation(t, h), (*metrics.bound)(t, h), place);
        if (metrics.stage_one_mass) {
          const double mass = (*metrics.stage_one_mass)(t, h);
          summary.stage_one_mass.add(mass);
          if (!(mass > 0.5)) ++summary.stage_one_low;
        }
        if (metrics.violates(t, h)) {
          ++summary.violations;
          if (!summary.first_violation) summary.first_violation = place;
        }
      }
      summary.layer_perturbation.add(metrics.layer_perturbation[t]);
      summary.layer_relative.add(metrics.layer_relative[t]);
    }
  }
  return summary;
}

ImprovedHeads improved_heads(const RunResult& run, const RunResult& base) {
  ImprovedHeads count;
  for (size_t l = 0; l < run.layers.size(); ++l) {
    const std::vector<double> means = column_means(run.layers[l].perturbation);
    const std::vector<double> base_means = column_means(base.layers[l].perturbation);
    for (size_t h = 0; h < means.size(); ++h) {
      ++count.heads;
      if (means[h] < base_means[h]) ++count.improved;
    }
  }
  return count;
}

const RunResult* base_of(const RunResult& run, const ReplayResult& result,
                         const std::optional<Policy>& base) {
  if (!base || run.run.policy.policy == *base || result.scope.steps == 0) return nullptr;
  for (const RunResult& candidate : result.runs) {
    if (candidate.run.policy.policy == *base && candidate.run.budget == run.run.budget &&
        candidate.run.backend == run.run.backend) {
      return &candidate;
    }
  }
  return nullptr;
}

std::vector<double> column_means(const Matrix& matrix) {
  std::vector<double> means(matrix.cols(), 0.0);
  for (int64_t t = 0; t < matrix.rows(); ++t) {
    for (size_t h = 0; h < means.size(); ++h) means[h] += matrix.row(t)[h];
  }
  for (double& mean : means) mean /= static_cast<double>(matrix.rows());
  return means;
}

}  // namespace kvbound::sim
