#include "replay_figures.hpp"

#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/merge_rules.hpp>

namespace kvbound::sim {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : kNone;
}

std::string text_of(const RunView& view, const std::optional<Place>& place) {
  if (!place) return "";
  const std::string step = place->step < 0 ? "the prompt's end" : fmt::format("step {}", place->step);
  return fmt::format("layer {}, {}, query head {}", view.trace.layer_number(place->layer), step,
                     place->query_head);
}

template <Matrix LayerMetrics::*figures>
std::optional<Matrix> steps_of(const LayerMetrics& metrics) {
  return metrics.*figures;
}

template <std::optional<Matrix> LayerMetrics::*figures>
std::optional<Matrix> steps_if_any(const LayerMetrics& metrics) {
  return metrics.*figures;
}

template <Matrix LaterQueries::*figures>
std::optional<Matrix> later_steps(const LayerMetrics& metrics) {
  return metrics.merges && metrics.merges->later ? std::optional((*metrics.merges->later).*figures)
                                                 : std::nullopt;
}

template <std::vector<double> LayerMetrics::*figures>
std::vector<double> list_of(const LayerMetrics& metrics) {
  return metrics.*figures;
}

std::vector<double> kept(const LayerMetrics& metrics) { return {metrics.kept.begin(), metrics.kept.end()}; }

// figure(step, head) where the run has a bound.
template <class Of>
std::optional<Matrix> where_bounded(const LayerMetrics& metrics, const Of& figure) {
  if (!metrics.bound) return std::nullopt;
  Matrix figures(metrics.bound->rows(), metrics.bound->cols());
  for (int64_t t = 0; t < figures.rows(); ++t) {
    for (int64_t h = 0; h < figures.cols(); ++h) figures(t, h) = figure(t, h);
  }
  return figures;
}

std::optional<Matrix> tightness(const LayerMetrics& metrics) {
  return where_bounded(metrics, [&](int64_t t, int64_t h) {
    return ratio(metrics.perturbation(t, h), (*metrics.bound)(t, h));
  });
}

std::optional<Matrix> violation(const LayerMetrics& metrics) {
  return where_bounded(metrics, [&](int64_t t, int64_t h) { return metrics.violates(t, h) ? 1.0 : 0.0; });
}

std::optional<Matrix> stage_one_low(const LayerMetrics& metrics) {
  std::optional<Matrix> low = metrics.stage_one_mass;
  if (!low) return low;
  for (int64_t t = 0; t < low->rows(); ++t) {
    for (int64_t h = 0; h < low->cols(); ++h) (*low)(t, h) = (*low)(t, h) <= 0.5 ? 1 : 0;
  }
  return low;
}

// The largest change that a merge of a decode step made to the output of the query that built it.
std::optional<Matrix> merge_perturbation(const LayerMetrics& metrics) {
  if (!metrics.merges) return std::nullopt;
  Matrix largest(metrics.perturbation.rows(), metrics.perturbation.cols());
  for (int64_t t = 0; t < largest.rows(); ++t) {
    for (int64_t h = 0; h < largest.cols(); ++h) largest(t, h) = kNone;
  }
  std::map<std::pair<int64_t, int64_t>, double> most;
  for (const MergeChange& change : metrics.merges->changes) {
    if (change.step < 0 || change.step >= largest.rows()) continue;
    double& one = most.try_emplace({change.step, change.query_head}, 0).first->second;
    one = larger(one, change.perturbation);
  }
  for (const auto& [place, change] : most) largest(place.first, place.second) = change;
  return largest;
}

double improved_heads(const RunView& view) {
  if (!view.base) return kNone;
  const ImprovedHeads heads = improved_heads(view.run, *view.base);
  return share(heads.improved, heads.heads);
}

double violations(const RunView& view) {
  return view.summary.merges ? kNone : static_cast<double>(view.summary.violations);
}

double max_tightness(const RunView& view) {
  return view.summary.tightest ? view.summary.max_tightness : kNone;
}

template <int64_t MergeCounts::*count>
double merge_count(const RunView& view) {
  return view.summary.merges ? static_cast<double>(view.summary.merges->counts.*count) : kNone;
}

// The share of clusters whose ZIP scale is exceptional: singular, negative or far from 1.
template <int64_t MergeCounts::*count>
double zip_share(const RunView& view) {
  const bool zips = rules_of(view.run.run.policy.policy.merge).key == MergedKey::zip;
  if (!view.summary.merges || !zips) return kNone;
  return share(view.summary.merges->counts.*count, view.summary.merges->counts.clusters);
}

double found_target(const RunView& view) {
  if (!view.summary.merges) return kNone;
  return share(view.summary.merges->counts.merged, view.summary.merges->counts.leaving);
}

double lossy(const RunView& view) {
  const bool judged = view.summary.merges && view.summary.merges->lossless > 0;
  return judged ? static_cast<double>(view.summary.merges->violations) : kNone;
}

double later_violations(const RunView& view) {
  const bool bounded = view.summary.later && !view.summary.later->joint_bound.values.empty();
  return bounded ? static_cast<double>(view.summary.later->violations) : kNone;
}

double predictable(const RunView& view) {
  if (!view.summary.later) return kNone;
  return share(view.summary.later->predictable, view.summary.later->predicted);
}

template <auto MergeSummary::*figure>
double of_merges(const RunView& view) {
  if (!view.summary.merges) return kNone;
  if constexpr (requires { ((*view.summary.merges).*figure).value(); }) {
    return ((*view.summary.merges).*figure).value().value_or(kNone);
  } else {
    return static_cast<double>((*view.summary.merges).*figure);
  }
}

template <auto LaterSummary::*figure>
double of_later(const RunView& view) {
  return view.summary.later ? ((*view.summary.later).*figure).value().value_or(kNone) : kNone;
}

using R = const RunView&;
constexpr Better kLow = Better::lower, kHigh = Better::higher;
constexpr Shown kIfAsked = Shown::if_asked;

std::vector<ReplayFigure> perturbation_figures() {
  return {
      {.figure = {.name = "perturbation",
                  .heading = "L",
                  .meaning =
                      "L = || (aV - a^V^) W^O_h ||_1, hidden-state units: what the compressed cache changes",
                  .better = kLow},
       .of_steps = steps_of<&LayerMetrics::perturbation>},
      {.figure = {.name = "relative",
                  .heading = "relative L",
                  .meaning = "L / || aV W^O_h ||_1, of one query head",
                  .better = kLow},
       .of_steps = steps_of<&LayerMetrics::relative>,
       .may_be_undefined = true},
      {.figure = {.name = "layer_perturbation",
                  .heading = "layer L",
                  .meaning = "|| sum_h (o_h - o^_h) ||_1 of a layer, hidden-state units",
                  .better = kLow,
                  .shown = kIfAsked},
       .of_layer_steps = list_of<&LayerMetrics::layer_perturbation>},
      {.figure = {.name = "layer_relative",
                  .heading = "layer rel. L",
                  .meaning = "layer L / || sum_h o_h ||_1, which compares across layers",
                  .better = kLow},
       .of_layer_steps = list_of<&LayerMetrics::layer_relative>,
       .may_be_undefined = true},
      {.figure = {.name = "bound",
                  .heading = "bound",
                  .meaning =
                      "theta, the upper bound on L of CriticalKV's Theorem 3.3; of runs that do not merge",
                  .better = kLow},
       .of_steps = steps_if_any<&LayerMetrics::bound>},
      {.figure = {.name = "tightness",
                  .heading = "L/bound",
                  .meaning = "L / theta: the used share of the bound"},
       .of_steps = tightness,
       .may_be_undefined = true},
      {.figure = {.name = "max_tightness", .heading = "max L/bound", .meaning = "the largest L / theta"},
       .of_run = max_tightness},
      {.figure = {.name = "tightest",
                  .heading = "tightest",
                  .meaning = "where L / theta is largest",
                  .shown = kIfAsked},
       .text_of_run = [](R view) { return text_of(view, view.summary.tightest); }},
      {.figure = {.name = "violations",
                  .heading = "violations",
                  .meaning = "how often L exceeds theta by more than rounding explains",
                  .format = Format::count,
                  .better = kLow,
                  .alarming = is_not_zero},
       .of_run = violations,
       .of_steps = violation},
      {.figure = {.name = "first_violation",
                  .heading = "first violation",
                  .meaning = "where L exceeds theta first",
                  .shown = kIfAsked},
       .text_of_run = [](R view) { return text_of(view, view.summary.first_violation); }},
      {.figure = {.name = "kept_mass",
                  .heading = "kept mass",
                  .meaning =
                      "true attention on the entries still in the cache, those of decode steps included",
                  .better = kHigh},
       .of_steps = steps_of<&LayerMetrics::kept_mass>},
      {.figure = {.name = "kept",
                  .heading = "kept",
                  .meaning = "entries of a KV head at the prompt's end",
                  .shown = kIfAsked},
       .of_kv_heads = kept},
      {.figure =
           {.name = "recall",
            .heading = "recall",
            .meaning =
                "share kept of the prompt entries whose eviction would change the first step's outputs most",
            .better = kHigh},
       .of_kv_heads = list_of<&LayerMetrics::recall>,
       .may_be_undefined = true},
      {.figure = {.name = "stage_one_mass",
                  .heading = "stage 1 mass",
                  .meaning =
                      "true attention on stage one's, always-kept and new entries; of two-stage selections",
                  .shown = kIfAsked},
       .of_steps = steps_if_any<&LayerMetrics::stage_one_mass>},
      {.figure = {.name = "stage_one_low",
                  .heading = "stage 1 <= 1/2",
                  .meaning =
                      "share of steps in which that is at most 1/2, where CriticalKV's Assumption 3.4 fails",
                  .format = Format::share},
       .of_steps = stage_one_low},
      {.figure = {.name = "improved_heads",
                  .heading = "improved heads",
                  .meaning = "share of layers' query heads whose mean L is below the base policy's",
                  .format = Format::share,
                  .better = kHigh},
       .of_run = improved_heads},
  };
}

std::vector<ReplayFigure> merge_figures() {
  return {
      {.figure =
           {.name = "merge_perturbation",
            .heading = "merge change",
            .meaning =
                "|| o(q, cache before) - o(q, cache after) ||_2 of the query that built the merge, attention "
                "output units; of a step: the largest",
            .better = kLow},
       .of_run = of_merges<&MergeSummary::perturbation>,
       .of_steps = merge_perturbation},
      {.figure = {.name = "max_merge_perturbation",
                  .heading = "max merge change",
                  .meaning = "the largest of them",
                  .better = kLow,
                  .shown = kIfAsked},
       .of_run = of_merges<&MergeSummary::max_perturbation>},
      {.figure = {.name = "lossless",
                  .heading = "lossless",
                  .meaning = "merges of a query head that are lossless in exact arithmetic",
                  .format = Format::count,
                  .shown = kIfAsked},
       .of_run = of_merges<&MergeSummary::lossless>},
      {.figure = {.name = "lossy",
                  .heading = "lossy",
                  .meaning = "how many of those change the output by more than rounding explains",
                  .format = Format::count,
                  .better = kLow,
                  .alarming = is_not_zero},
       .of_run = lossy},
      {.figure = {.name = "first_lossy",
                  .heading = "first lossy",
                  .meaning = "where the first is",
                  .shown = kIfAsked},
       .text_of_run =
           [](R view) {
             return view.summary.merges ? text_of(view, view.summary.merges->first_violation) : std::string();
           }},
      {.figure = {.name = "leaving",
                  .heading = "evicted entries",
                  .meaning = "evicted entries, which merge or are dropped",
                  .format = Format::count,
                  .shown = kIfAsked},
       .of_run = merge_count<&MergeCounts::leaving>},
      {.figure = {.name = "merged",
                  .heading = "merged entries",
                  .meaning = "how many of them found a target to merge with",
                  .format = Format::count,
                  .shown = kIfAsked},
       .of_run = merge_count<&MergeCounts::merged>},
      {.figure = {.name = "found_target",
                  .heading = "found target",
                  .meaning = "merged / evicted entries",
                  .format = Format::share},
       .of_run = found_target},
      {.figure = {.name = "groups",
                  .heading = "groups",
                  .meaning = "clusters that became one entry each",
                  .format = Format::count,
                  .shown = kIfAsked},
       .of_run = merge_count<&MergeCounts::clusters>},
      {.figure = {.name = "zip_singular",
                  .heading = "ZIP singular",
                  .meaning = "share of clusters for which ZIP has no scale",
                  .format = Format::share},
       .of_run = zip_share<&MergeCounts::singular>},
      {.figure = {.name = "zip_negative",
                  .heading = "ZIP negative",
                  .meaning = "share of clusters whose ZIP scale is negative",
                  .format = Format::share},
       .of_run = zip_share<&MergeCounts::negative>},
      {.figure = {.name = "zip_far",
                  .heading = "ZIP far",
                  .meaning = "share of clusters whose ZIP scale differs from 1 by more than 1/2",
                  .format = Format::share},
       .of_run = zip_share<&MergeCounts::far>},
      {.figure = {.name = "group_merged",
                  .heading = "group merged",
                  .meaning =
                      "change by one cluster's merge alone, attention output units; with --merge-bounds",
                  .better = kLow},
       .of_run = of_merges<&MergeSummary::cluster_merged>},
      {.figure = {.name = "group_evicted",
                  .heading = "group evicted",
                  .meaning = "change if the cluster's evicted members were dropped instead"},
       .of_run = of_merges<&MergeSummary::cluster_evicted>},
      {.figure = {.name = "group_floor",
                  .heading = "group floor",
                  .meaning = "the least change that one common value can reach"},
       .of_run = of_merges<&MergeSummary::cluster_floor>},
  };
}

std::vector<ReplayFigure> later_figures() {
  return {
      {.figure = {.name = "later_perturbation",
                  .heading = "later change",
                  .meaning =
                      "Theta: change of a later query's output by the latest merge, attention output units",
                  .better = kLow},
       .of_run = of_later<&LaterSummary::perturbation>,
       .of_steps = later_steps<&LaterQueries::perturbation>},
      {.figure =
           {.name = "predictable",
            .heading = "epsilon < 1",
            .meaning =
                "share of layers, steps and heads with a prediction error below 1, where KKV-5 says something",
            .format = Format::share},
       .of_run = predictable},
      {.figure = {.name = "prediction_error",
                  .heading = "epsilon",
                  .meaning =
                      "epsilon = max |1 - s^/s| over merged entries; of a run: the mean of those below 1",
                  .better = kLow,
                  .shown = kIfAsked},
       .of_run = of_later<&LaterSummary::prediction_error>,
       .of_steps = later_steps<&LaterQueries::prediction_error>},
      {.figure = {.name = "value_distance",
                  .heading = "gamma",
                  .meaning = "gamma = max || v_i - v_j ||_2 over entries i and merged members j",
                  .shown = kIfAsked},
       .of_run = of_later<&LaterSummary::value_distance>,
       .of_steps = later_steps<&LaterQueries::value_distance>},
      {.figure = {.name = "later_bound",
                  .heading = "KKV-5",
                  .meaning = "KeepKV's bound on Theta; of a run: the median where epsilon < 1",
                  .better = kLow},
       .of_run = of_later<&LaterSummary::bound>,
       .of_steps = later_steps<&LaterQueries::bound>},
      {.figure = {.name = "later_shared_bound",
                  .heading = "KKV-5'",
                  .meaning = "KKV-5 times the attention that merged entries receive; likewise",
                  .better = kLow},
       .of_run = of_later<&LaterSummary::shared_bound>,
       .of_steps = later_steps<&LaterQueries::shared_bound>},
      {.figure = {.name = "later_joint_bound",
                  .heading = "KKV-5-joint",
                  .meaning = "the bound for several query heads per KV head; likewise",
                  .better = kLow},
       .of_run = of_later<&LaterSummary::joint_bound>,
       .of_steps = later_steps<&LaterQueries::joint_bound>},
      {.figure = {.name = "later_violations",
                  .heading = "later violations",
                  .meaning = "how often Theta exceeds KKV-5-joint by more than rounding explains",
                  .format = Format::count,
                  .better = kLow,
                  .alarming = is_not_zero},
       .of_run = later_violations},
      {.figure = {.name = "first_later_violation",
                  .heading = "first later violation",
                  .meaning = "where it does first",
                  .shown = kIfAsked},
       .text_of_run =
           [](R view) {
             return view.summary.later ? text_of(view, view.summary.later->first_violation) : std::string();
           }},
      {.figure = {.name = "sag",
                  .heading = "sag",
                  .meaning =
                      "attention that the members would receive, less what the merged entries receive"},
       .of_run = of_later<&LaterSummary::sag>,
       .of_steps = later_steps<&LaterQueries::sag>},
  };
}

std::vector<ReplayFigure> time_figures() {
  return {
      {.figure = {.name = "compress_seconds",
                  .heading = "compression",
                  .meaning = "wall time of all layers' prompt compression, seconds",
                  .format = Format::duration,
                  .better = kLow,
                  .shown = kIfAsked},
       .of_run = [](R view) { return view.run.compress_seconds; }},
      {.figure = {.name = "step_seconds",
                  .heading = "steps",
                  .meaning = "wall time of all layers' decode steps, seconds",
                  .format = Format::duration,
                  .better = kLow,
                  .shown = kIfAsked},
       .of_run = [](R view) { return view.run.step_seconds; }},
  };
}

std::vector<ReplayFigure> all_figures() {
  std::vector<ReplayFigure> all;
  for (const auto& part : {perturbation_figures(), merge_figures(), later_figures(), time_figures()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The numbers of a layer at the finest level that the figure has.
std::vector<double> finest(const ReplayFigure& figure, const LayerMetrics& metrics) {
  if (figure.of_kv_heads) return figure.of_kv_heads(metrics);
  if (figure.of_layer_steps) return figure.of_layer_steps(metrics);
  const std::optional<Matrix> steps = figure.of_steps(metrics);
  if (!steps) return {};
  const VectorView numbers = steps->numbers();
  return {numbers.begin(), numbers.end()};
}

}  // namespace

const std::vector<ReplayFigure>& replay_figures() {
  static const std::vector<ReplayFigure> kFigures = all_figures();
  return kFigures;
}

RunNumber number_of_run(const ReplayFigure& figure, const RunView& view) {
  if (figure.of_run) return {figure.of_run(view)};
  Mean mean;
  for (const LayerMetrics& metrics : view.run.layers) {
    for (const double number : finest(figure, metrics)) mean.add(number);
  }
  return {mean.value().value_or(kNone), mean.undefined};
}

std::vector<double> head_means(const Matrix& figures) {
  std::vector<double> means;
  for (int64_t h = 0; h < figures.cols(); ++h) {
    Mean mean;
    for (int64_t t = 0; t < figures.rows(); ++t) mean.add(figures(t, h));
    means.push_back(mean.value().value_or(kNone));
  }
  return means;
}

}  // namespace kvbound::sim
