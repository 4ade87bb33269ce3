#include "score_ema.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <string>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/eviction/window_logits.hpp>
#include <kvbound/reference/numerics/exponential.hpp>

namespace kvbound::reference {
namespace {

// Turns the logits of the visible tokens into ln s, in place. largest: the largest logit.
void normalise(std::span<double> logits, double largest) {
  const double log_sum = largest + std::log(exponential_sum(logits, largest));
  for (double& logit : logits) logit -= log_sum;
}

}  // namespace

std::vector<double> log_scores(ScoreKind kind, VectorView logits, VectorView votes) {
  if (!votes.empty()) {
    require_equal("votes", std::ssize(votes), "logits", std::ssize(logits));
  }
  std::vector<double> scores(logits.begin(), logits.end());
  if (kind == ScoreKind::raw) return scores;
  require_finite("logits", logits);
  for (size_t j = 0; j < votes.size(); ++j) scores[j] += std::log(votes[j]);
  const double log_sum = log_sum_exp(scores);
  for (size_t j = 0; j < scores.size(); ++j) scores[j] = logits[j] - log_sum;
  return scores;
}

ScoreEma::ScoreEma(const PredictedScores& options, int64_t heads)
    : options_(options), sums_(static_cast<size_t>(heads)) {
  assert(options.ema == 0 || (0x1p-900 <= options.ema && options.ema < 1));
}

void ScoreEma::append() {
  weights_.push_back(0);
  exponentials_.push_back(0);
  for (ScaledAverages& sums : sums_) sums.append();
}

void ScoreEma::remove(int64_t entry) {
  assert(0 <= entry && entry < entries());
  const auto leave = [entry](std::vector<double>& numbers) {
    numbers[entry] = numbers.back();
    numbers.pop_back();
  };
  leave(weights_);
  exponentials_.pop_back();
  for (ScaledAverages& sums : sums_) {
    leave(sums.exponents);
    leave(sums.mantissas);
  }
}

ScoreEma ScoreEma::of(std::span<const int64_t> chosen) const {
  ScoreEma result(options_, heads());
  const auto take = [chosen](const std::vector<double>& from, std::vector<double>& to) {
    for (const int64_t entry : chosen) to.push_back(from[entry]);
  };
  take(weights_, result.weights_);
  result.exponentials_.resize(chosen.size());
  for (size_t h = 0; h < sums_.size(); ++h) {
    take(sums_[h].exponents, result.sums_[h].exponents);
    take(sums_[h].mantissas, result.sums_[h].mantissas);
  }
  return result;
}

void ScoreEma::observe(MatrixView log_scores) {
  require_equal("rows of log_scores", log_scores.rows, "query heads", heads());
  if (log_scores.cols > entries()) {
    throw ShapeMismatch("columns of log_scores is " + std::to_string(log_scores.cols) + " but entries is " +
                        std::to_string(entries()));
  }
  for (int64_t h = 0; h < heads(); ++h) accumulate(sums_[h], log_scores.row(h));
  for (int64_t j = 0; j < log_scores.cols; ++j) {
    double& weight = weights_[j];
    weight = options_.ema * weight + (1 - options_.ema);
  }
}

void ScoreEma::observe_logits(MatrixView logits, VectorView votes) {
  Matrix scores(logits.rows, logits.cols);
  for (int64_t h = 0; h < logits.rows; ++h) {
    std::ranges::copy(log_scores(options_.scores, logits.row(h), votes), scores.row(h).begin());
  }
  observe(scores);
}

// S' = a S + (1 - a) s, in the log domain.
void ScoreEma::accumulate(ScaledAverages& sums, VectorView log_scores) {
  if (!decay_towards(log_scores, options_.ema, sums, exponentials_)) require_finite("log_scores", log_scores);
}

void ScoreEma::replace(int64_t entry, VectorView log_scores, int64_t tokens) {
  require_equal("log_scores", std::ssize(log_scores), "query heads", heads());
  require_finite("log_scores", log_scores);
  const int64_t j = entry;
  if (weights_[j] == 0) return;  // a predicted score would have no weight
  for (size_t h = 0; h < sums_.size(); ++h) {
    sums_[h].exponents[j] = log_scores[h] + log_divisor(entry, tokens);
    sums_[h].mantissas[j] = 1;
  }
}

double ScoreEma::log_divisor(int64_t entry, int64_t tokens) const {
  if (options_.normalisation == Normalisation::exact) return std::log(weights_[entry]);
  assert(tokens >= 1);
  return std::log(-std::expm1(static_cast<double>(tokens) * std::log(options_.ema)));
}

double ScoreEma::log_predicted(const ScaledAverages& sums, size_t entry, double log_divisor) {
  if (sums.mantissas[entry] == 0) return -std::numeric_limits<double>::infinity();
  return sums.exponents[entry] + (std::log(sums.mantissas[entry]) - log_divisor);
}

double ScoreEma::log_predicted(int64_t head, int64_t entry, int64_t tokens) const {
  return log_predicted(sums_[head], static_cast<size_t>(entry), log_divisor(entry, tokens));
}

Matrix ScoreEma::log_predicted(int64_t tokens) const {
  Matrix result(heads(), entries());
  for (int64_t j = 0; j < entries(); ++j) {
    const double divisor = log_divisor(j, tokens);
    for (int64_t h = 0; h < heads(); ++h) {
      result(h, j) = log_predicted(sums_[h], static_cast<size_t>(j), divisor);
    }
  }
  return result;
}

ScoreEma prompt_ema(const LayerView& layer, int64_t kv_head, const PredictedScores& options) {
  WindowLogits window(layer, layer.window_queries());
  const int64_t first_head = kv_head * layer.shape.group_size();
  ScoreEma result(options, layer.shape.group_size());
  for (int64_t j = 0; j < layer.prompt_tokens(); ++j) result.append();
  for (const HeadBlock& heads : head_blocks(layer.shape, kv_head)) {
    window.visit(heads, [&](const WindowLogitsBlock& block) {
      for (int64_t row = 0; row < block.logits.rows; ++row) {
        const int64_t index = row;
        const std::span<double> logits = block.logits.row(row).first(block.visible[index]);
        if (options.scores == ScoreKind::attention) normalise(logits, block.largest[index]);
        result.accumulate(result.sums_[block.head_of(row) - first_head], logits);
      }
    });
  }
  // An entry's weight depends only on the number of queries that
  // saw it: all of them, or those from its own position on.
  std::vector<double> weights{0};
  for (int64_t seen = 1; seen <= layer.window_queries(); ++seen) {
    weights.push_back(options.ema * weights.back() + (1 - options.ema));
  }
  for (int64_t j = 0; j < layer.prompt_tokens(); ++j) {
    const int64_t seen = std::min(layer.window_queries(), layer.prompt_tokens() - j);
    result.weights_[j] = weights[seen];
  }
  return result;
}

}  // namespace kvbound::reference
