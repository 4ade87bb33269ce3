#include "predict.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/numerics/exponential.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/measure/median.hpp>
#include <kvbound/sim/options/head_budgets.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/replay.hpp>

#include "query_logits.hpp"
#include "score_variance.hpp"

namespace kvbound::sim {
namespace {

using Numbers = std::vector<double>;
using Positions = std::vector<int64_t>;

constexpr std::array<ScoreKind, 2> kKinds{ScoreKind::attention, ScoreKind::raw};

int64_t at_most(const Budget& share, int64_t entries) { return std::min(share.entries(entries), entries); }

// sum_j |s^_j - s_j| / sum_j s_j, with all scores relative to the largest to avoid overflow.
double relative_error(const Numbers& predicted, VectorView log_scores) {
  const double largest = std::ranges::max(log_scores);
  Numbers expected(log_scores.size()), scores(log_scores.size());
  reference::exponentiate(predicted, largest, expected);
  const double sum = reference::exponentiate(log_scores, largest, scores);
  double differences = 0;
  for (size_t j = 0; j < scores.size(); ++j) differences += std::abs(expected[j] - scores[j]);
  return differences / sum;
}

// The median of |s^_j - s_j| / s_j.
double entry_error(Numbers predicted, VectorView log_scores) {
  for (size_t j = 0; j < predicted.size(); ++j) predicted[j] -= log_scores[j];
  reference::exponentiate(predicted, 0);
  for (double& ratio : predicted) ratio = std::abs(ratio - 1);
  return median(std::move(predicted));
}

// Measures one query head, one query at a time.
class HeadMeasurement {
 public:
  // stays  [n]: whether the policy keeps each prompt entry
  HeadMeasurement(const traces::Layer& layer, const PredictOptions& options, std::vector<bool> stays)
      : layer_(layer),
        options_(options),
        histories_{ScoreHistory(options.ema, options.window), ScoreHistory(options.ema, options.window)},
        variance_(options.window),
        stays_(std::move(stays)),
        seen_in_top_(stays_.size(), false) {
    const auto rows = std::ssize(predictors());
    result_.relative_errors = result_.entry_errors = Matrix(rows, options.steps);
    result_.mass = Matrix(std::ssize(options.shares), options.steps);
    result_.evicted = std::ranges::count(stays_, false);
  }

  // Takes the next query: its index, recorded prompt queries first, and its logits of
  // all entries that it sees.
  void take(int64_t query, VectorView logits) {
    const int64_t step = query - layer_.window_queries;
    const double log_sum = reference::log_sum_exp(logits);
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      Numbers scores(logits.begin(), logits.end());
      if (kKinds[kind] == ScoreKind::attention) {
        for (double& score : scores) score -= log_sum;
      }
      // The step's own entry is not predicted, because no earlier query has seen it.
      if (step >= 0) judge(kKinds[kind], step, VectorView(scores).first(scores.size() - 1));
      histories_[kind].observe(scores);
    }
    vary(step, logits, log_sum);
    if (step < 0) return;
    look_for_reentering(step, logits);
    add_up_mass(step, logits);
  }

  HeadPrediction result() && {
    const auto ever = std::ranges::count(seen_in_top_, true);
    result_.reentered_ever = share_of_evicted(ever);
    return std::move(result_);
  }

 private:
  void judge(ScoreKind kind, int64_t step, VectorView log_scores) {
    for (size_t p = 0; p < predictors().size(); ++p) {
      const Predictor& predictor = predictors()[p];
      if (predictor.scores != kind) continue;
      const ScoreHistory& history = histories_[kind == kKinds[0] ? 0 : 1];
      const Numbers predicted = history.predicted(predictor.by, std::ssize(log_scores));
      result_.relative_errors(p, step) = relative_error(predicted, log_scores);
      result_.entry_errors(p, step) = entry_error(predicted, log_scores);
    }
  }

  void vary(int64_t step, VectorView logits, double log_sum) {
    Numbers weights(logits.begin(), logits.end());
    reference::exponentiate(weights, log_sum);
    variance_.observe(std::move(weights));
    if (step < 0) return;
    const MeanVariances means = variance_.means();
    result_.whole_variances.push_back(means.whole);
    result_.window_variances.push_back(means.window);
    result_.variance_ratios.push_back(means.ratio);
  }

  void look_for_reentering([[maybe_unused]] int64_t step, VectorView logits) {
    const VectorView prompt = logits.first(stays_.size());
    int64_t count = 0;
    for (const int64_t j : reference::select_top(prompt, at_most(options_.top, layer_.prompt_tokens))) {
      if (stays_[j]) continue;
      seen_in_top_[j] = true;
      ++count;
    }
    result_.reentered.push_back(share_of_evicted(count));
    assert(std::ssize(result_.reentered) == step + 1);
  }

  void add_up_mass(int64_t step, VectorView logits) {
    Numbers weights(logits.begin(), logits.end());
    std::ranges::sort(weights, std::greater<>());
    const double sum = reference::exponentiate(weights, weights.front());
    for (size_t s = 0; s < options_.shares.size(); ++s) {
      const auto count = at_most(options_.shares[s], std::ssize(weights));
      const double mass = std::accumulate(weights.begin(), weights.begin() + count, 0.0);
      result_.mass(s, step) = std::min(mass / sum, 1.0);
    }
  }

  double share_of_evicted(int64_t count) const {
    return result_.evicted > 0 ? static_cast<double>(count) / static_cast<double>(result_.evicted) : 0;
  }

  const traces::Layer& layer_;
  const PredictOptions& options_;
  std::array<ScoreHistory, 2> histories_;
  ScoreVariance variance_;
  std::vector<bool> stays_, seen_in_top_;
  HeadPrediction result_;
};

std::vector<bool> marks(const Positions& positions, int64_t count) {
  std::vector<bool> marked(count, false);
  for (const int64_t position : positions) marked[position] = true;
  return marked;
}

void require_valid(const traces::Layer& layer, const PredictOptions& options) {
  const int64_t steps = layer.keys.view().rows - layer.prompt_tokens;
  if (options.steps < 1 || options.steps > steps) {
    throw ShapeMismatch(
        fmt::format("{} decode steps are to be predicted but {} are recorded", options.steps, steps));
  }
  if (!(options.ema >= 0 && options.ema < 1) || options.window < 1) {
    throw ShapeMismatch(
        fmt::format("ema is {} and the window {}; expected 0 <= ema < 1 and a window of at least 1",
                    options.ema, options.window));
  }
  const int64_t top = options.top.entries(layer.prompt_tokens);
  if (top < 1 || top > layer.prompt_tokens) {
    throw ShapeMismatch(fmt::format("{} of {} entries are no top", top, layer.prompt_tokens));
  }
}

}  // namespace

std::vector<Budget> usual_shares() {
  std::vector<Budget> shares;
  for (const int64_t percent : {1, 2, 5, 10, 20, 50}) shares.push_back({{percent}, true});
  return shares;
}

std::string_view name(ScoreKind scores) { return scores == ScoreKind::attention ? "attention" : "raw"; }

const std::vector<Predictor>& predictors() {
  static const std::vector<Predictor> all = [] {
    std::vector<Predictor> list;
    for (const ScoreKind scores : kKinds) {
      for (const PredictionRule by : kForetellings) list.push_back({scores, by});
    }
    return list;
  }();
  return all;
}

std::vector<HeadPrediction> layer_prediction(const traces::Layer& layer, const PredictOptions& options,
                                             const std::vector<int64_t>& budgets,
                                             const std::function<void()>& done) {
  require_valid(layer, options);
  const auto kept = reference::make_session()->compress(layer.prompt(), options.policy, budgets).kept;
  std::vector<HeadPrediction> result(layer.shape.query_heads);
  std::mutex one_at_a_time;
  reference::parallel_for(layer.shape.query_heads, [&](int64_t h) {
    const auto g = static_cast<size_t>(layer.shape.kv_head_of(h));
    HeadMeasurement head(layer, options, marks(kept[g], layer.prompt_tokens));
    visit_query_logits(layer, h, options.steps,
                       [&](int64_t query, VectorView logits) { head.take(query, logits); });
    result[h] = std::move(head).result();
    if (!done) return;
    // Unlike an OpenMP critical region, a lock may be left by an exception.
    const std::scoped_lock lock(one_at_a_time);
    done();
  });
  return result;
}

PredictResult predict(const traces::Trace& trace, const std::vector<int64_t>& layers,
                      const PredictOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  const traces::TraceInfo& info = trace.info();
  const Run run{{canonical(options.policy), options.policy}, options.budget, std::string(kReference)};
  const Scope scope{.layers = layers};
  require_valid({run}, info, scope);
  const HeadBudgets budgets = std::move(empty_result(info, {run}, scope).runs.front().budgets);
  PredictResult result{info, options, {}};
  int64_t pieces = 0;
  const auto done = [&] {
    ++pieces;
    if (progress) progress(pieces, info.shape.query_heads * std::ssize(layers));
  };
  for (const int64_t l : layers) {
    const traces::Layer layer = trace.read_layer(l);
    try {
      result.layers.push_back({l, budgets[l], layer_prediction(layer, options, budgets[l], done)});
    } catch (const NonFinite& error) {
      throw TraceError(info.path, -1, fmt::format("layers.{}", l),
                       fmt::format("its numbers are too large to compute with: {}", error.what()));
    }
  }
  return result;
}

}  // namespace kvbound::sim
