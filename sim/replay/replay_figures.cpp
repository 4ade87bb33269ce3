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

// Where caches are rebuilt, the full one stays beside the compressed one.
double stored_bytes(const RunView& view) {
  int64_t entries = 0;
  for (const LayerMetrics& metrics : view.run.layers) {
    for (const int64_t of_head : metrics.kept) entries += of_head;
    if (rules_of(view.run.run.policy.policy.merge).period)
      entries += std::ssize(metrics.kept) * view.trace.prompt_tokens;
  }
  return static_cast<double>(2 * entries * view.trace.shape.head_dim * size_of(view.trace.storage));
}

double improved_heads(const RunView& view) {
  if (!view.base) return kNone;
  const ImprovedHeads heads = improved_heads(view.run, *view.base);
  return share(heads.improved, heads.heads);
}

double violations(const RunView& view) {
  return view.summary.bounded ? static_cast<double>(view.summary.violations) : kNone;
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
  const bool bounded = view.summary.later && !view.summary.later->variation_bound.values.empty();
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
      {.figure = number_figure(
           "perturbation", "L",
           "L = || (aV - a^V^) W^O_h ||_1, hidden-state units: what the compressed cache changes", kLow),
       .of_steps = steps_of<&LayerMetrics::perturbation>},
      {.figure = number_figure("relative", "relative L", "L / || aV W^O_h ||_1, of one query head", kLow),
       .of_steps = steps_of<&LayerMetrics::relative>,
       .may_be_undefined = true},
      {.figure = number_figure("layer_perturbation", "layer L",
                               "|| sum_h (o_h - o^_h) ||_1 of a layer, hidden-state units", kLow, kIfAsked),
       .of_layer_steps = list_of<&LayerMetrics::layer_perturbation>},
      {.figure = number_figure("layer_relative", "layer rel. L",
                               "layer L / || sum_h o_h ||_1, which compares across layers", kLow),
       .of_layer_steps = list_of<&LayerMetrics::layer_relative>,
       .may_be_undefined = true},
      {.figure = number_figure(
           "bound",
           "theta, the upper bound on L of CriticalKV's Theorem 3.3; with merging, over the original entries",
           kLow),
       .of_steps = steps_if_any<&LayerMetrics::bound>},
      {.figure = number_figure(
           "centred_bound", "bound-centred",
           "theta with ||V_j - o W^O||_1 for ||V_j||_1; with --centred-bound, not with CaM", kLow),
       .of_steps = steps_if_any<&LayerMetrics::centred_bound>},
      {.figure = number_figure("tightness", "L/bound", "L / theta: the used share of the bound"),
       .of_steps = tightness,
       .may_be_undefined = true},
      {.figure = number_figure("max_tightness", "max L/bound", "the largest L / theta"),
       .of_run = max_tightness},
      {.figure = number_figure("tightest", "where L / theta is largest", kIfAsked),
       .text_of_run = [](R view) { return text_of(view, view.summary.tightest); }},
      {.figure = count_figure("violations", "how often L exceeds a bound by more than rounding explains",
                              kLow, is_not_zero),
       .of_run = violations,
       .of_steps = violation},
      {.figure = number_figure("first_violation", "first violation", "where L exceeds theta first", kIfAsked),
       .text_of_run = [](R view) { return text_of(view, view.summary.first_violation); }},
      {.figure = number_figure(
           "kept_mass", "kept mass",
           "true attention on the entries still in the cache, those of decode steps included", kHigh),
       .of_steps = steps_of<&LayerMetrics::kept_mass>},
      {.figure = number_figure("kept", "entries of a KV head at the prompt's end", kIfAsked),
       .of_kv_heads = kept},
      {.figure = number_figure("bytes", "stored",
                               "of all stored keys and values at the prompt's end, in the trace's type",
                               Format::memory, Better::lower, kIfAsked),
       .of_run = stored_bytes},
      {.figure = number_figure(
           "recall",
           "share kept of the prompt entries whose eviction would change the first step's outputs most",
           kHigh),
       .of_kv_heads = list_of<&LayerMetrics::recall>,
       .may_be_undefined = true},
      {.figure = number_figure(
           "stage_one_mass", "stage 1 mass",
           "true attention on stage one's, always-kept and new entries; of two-stage selections", kIfAsked),
       .of_steps = steps_if_any<&LayerMetrics::stage_one_mass>},
      {.figure = number_figure(
           "stage_one_low", "stage 1 <= 1/2",
           "share of steps in which that is at most 1/2, where CriticalKV's Assumption 3.4 fails",
           Format::share),
       .of_steps = stage_one_low},
      {.figure = number_figure("improved_heads", "improved heads",
                               "share of layers' query heads whose mean L is below the base policy's",
                               Format::share, kHigh),
       .of_run = improved_heads},
  };
}

std::vector<ReplayFigure> merge_figures() {
  return {
      {.figure = number_figure(
           "merge_perturbation", "merge change",
           "|| o(q, cache before) - o(q, cache after) ||_2 of the query that built the merge, attention "
           "output units; of a step: the largest",
           kLow),
       .of_run = of_merges<&MergeSummary::perturbation>,
       .of_steps = merge_perturbation},
      {.figure =
           number_figure("max_merge_perturbation", "max merge change", "the largest of them", kLow, kIfAsked),
       .of_run = of_merges<&MergeSummary::max_perturbation>},
      {.figure =
           count_figure("lossless", "merges of a query head that are lossless in exact arithmetic", kIfAsked),
       .of_run = of_merges<&MergeSummary::lossless>},
      {.figure = count_figure("lossy", "how many of those change the output by more than rounding explains",
                              kLow, is_not_zero),
       .of_run = lossy},
      {.figure = number_figure("first_lossy", "first lossy", "where the first is", kIfAsked),
       .text_of_run =
           [](R view) {
             return view.summary.merges ? text_of(view, view.summary.merges->first_violation) : std::string();
           }},
      {.figure = count_figure("leaving", "evicted entries", "evicted entries, which merge or are dropped",
                              kIfAsked),
       .of_run = merge_count<&MergeCounts::leaving>},
      {.figure = count_figure("merged", "merged entries", "how many of them found a target to merge with",
                              kIfAsked),
       .of_run = merge_count<&MergeCounts::merged>},
      {.figure = number_figure("found_target", "found target", "merged / evicted entries", Format::share),
       .of_run = found_target},
      {.figure = count_figure("groups", "clusters that became one entry each", kIfAsked),
       .of_run = merge_count<&MergeCounts::clusters>},
      {.figure = number_figure("zip_singular", "ZIP singular", "share of clusters for which ZIP has no scale",
                               Format::share),
       .of_run = zip_share<&MergeCounts::singular>},
      {.figure = number_figure("zip_negative", "ZIP negative",
                               "share of clusters whose ZIP scale is negative", Format::share),
       .of_run = zip_share<&MergeCounts::negative>},
      {.figure =
           number_figure("zip_far", "ZIP far",
                         "share of clusters whose ZIP scale differs from 1 by more than 1/2", Format::share),
       .of_run = zip_share<&MergeCounts::far>},
      {.figure = number_figure(
           "group_merged", "group merged",
           "change by one cluster's merge alone, attention output units; with --merge-bounds", kLow),
       .of_run = of_merges<&MergeSummary::cluster_merged>},
      {.figure = number_figure("group_evicted", "group evicted",
                               "change if the cluster's evicted members were dropped instead"),
       .of_run = of_merges<&MergeSummary::cluster_evicted>},
      {.figure =
           number_figure("group_floor", "group floor", "the least change that one common value can reach"),
       .of_run = of_merges<&MergeSummary::cluster_floor>},
  };
}

std::vector<ReplayFigure> later_figures() {
  return {
      {.figure = number_figure(
           "later_perturbation", "later change",
           "Theta: change of a later query's output by the latest merge, attention output units", kLow),
       .of_run = of_later<&LaterSummary::perturbation>,
       .of_steps = later_steps<&LaterQueries::perturbation>},
      {.figure = number_figure(
           "predictable", "epsilon < 1",
           "share of layers, steps and heads with a prediction error below 1, where KKV-5 says something",
           Format::share),
       .of_run = predictable},
      {.figure =
           number_figure("prediction_error", "epsilon",
                         "epsilon = max |1 - s^/s| over merged entries; of a run: the mean of those below 1",
                         kLow, kIfAsked),
       .of_run = of_later<&LaterSummary::prediction_error>,
       .of_steps = later_steps<&LaterQueries::prediction_error>},
      {.figure = number_figure("value_distance", "gamma",
                               "gamma = max || v_i - v_j ||_2 over entries i and merged members j", kIfAsked),
       .of_run = of_later<&LaterSummary::value_distance>,
       .of_steps = later_steps<&LaterQueries::value_distance>},
      {.figure = number_figure("later_bound", "KKV-5",
                               "KeepKV's bound on Theta; of a run: the median where epsilon < 1", kLow),
       .of_run = of_later<&LaterSummary::bound>,
       .of_steps = later_steps<&LaterQueries::bound>},
      {.figure = number_figure("later_shared_bound", "KKV-5'",
                               "KKV-5 times the attention that merged entries receive; likewise", kLow),
       .of_run = of_later<&LaterSummary::shared_bound>,
       .of_steps = later_steps<&LaterQueries::shared_bound>},
      {.figure = number_figure("later_joint_bound", "KKV-5-joint",
                               "the sharpest bound, for several query heads per KV head; likewise", kLow),
       .of_run = of_later<&LaterSummary::joint_bound>,
       .of_steps = later_steps<&LaterQueries::joint_bound>},
      {.figure =
           number_figure("later_variation_bound", "KKV-5-free",
                         "the bound by the total variation of the attention, for any epsilon; median", kLow),
       .of_run = of_later<&LaterSummary::variation_bound>,
       .of_steps = later_steps<&LaterQueries::variation_bound>},
      {.figure = count_figure("later_violations", "later violations",
                              "how often Theta exceeds one of the last two by more than rounding explains",
                              kLow, is_not_zero),
       .of_run = later_violations},
      {.figure =
           number_figure("first_later_violation", "first later violation", "where it does first", kIfAsked),
       .text_of_run =
           [](R view) {
             return view.summary.later ? text_of(view, view.summary.later->first_violation) : std::string();
           }},
      {.figure = number_figure(
           "sag", "attention that the members would receive, less what the merged entries receive"),
       .of_run = of_later<&LaterSummary::sag>,
       .of_steps = later_steps<&LaterQueries::sag>},
  };
}

std::vector<ReplayFigure> time_figures() {
  return {
      {.figure = number_figure("compress_seconds", "compression",
                               "wall time of all layers' prompt compression, seconds", Format::duration, kLow,
                               kIfAsked),
       .of_run = [](R view) { return view.run.compress_seconds; }},
      {.figure = number_figure("step_seconds", "steps", "wall time of all layers' decode steps, seconds",
                               Format::duration, kLow, kIfAsked),
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
