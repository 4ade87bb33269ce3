#include "score_history.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/exponential.hpp>

namespace kvbound::sim {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

reference::ScoreEma moving_average(double ema, Normalisation normalisation) {
  PredictedScores options;
  options.ema = ema;
  options.normalisation = normalisation;
  return {options, 1};
}

void observe_row(reference::ScoreEma& average, VectorView log_scores) {
  const auto entries = std::ssize(log_scores);
  while (average.entries() < entries) average.append();
  average.observe({log_scores.data(), 1, entries});
}

std::vector<double> predicted_row(const reference::ScoreEma& average, int64_t tokens) {
  const Matrix row = average.log_predicted(tokens);
  return {row.numbers().begin(), row.numbers().end()};
}

}  // namespace

ScoreHistory::ScoreHistory(double ema, int64_t window)
    : window_(window),
      exact_(moving_average(ema, Normalisation::exact)),
      paper_(moving_average(ema, Normalisation::paper)) {}

void ScoreHistory::observe(VectorView log_scores) {
  if (log_scores.size() < counts_.size()) {
    throw ShapeMismatch("log_scores is " + std::to_string(log_scores.size()) + " but " +
                        std::to_string(counts_.size()) + " entries are known");
  }
  require_finite("log_scores", log_scores);
  observe_row(exact_, log_scores);
  observe_row(paper_, log_scores);
  all_.add(log_scores);
  counts_.resize(log_scores.size());
  for (int64_t& count : counts_) ++count;
  last_.emplace_back(log_scores.begin(), log_scores.end());
  if (std::ssize(last_) > window_) last_.pop_front();
}

// Adds with one exponential per entry: exp of the smaller exponent less the larger.
void ScoreHistory::Sums::add(VectorView log_scores) {
  exponents.resize(log_scores.size(), kNothing);
  sums.resize(log_scores.size(), 0);
  std::vector<double> shares(log_scores.size());
  for (size_t j = 0; j < shares.size(); ++j) shares[j] = -std::abs(log_scores[j] - exponents[j]);
  reference::exponentiate(shares, 0);
  for (size_t j = 0; j < shares.size(); ++j) {
    const bool larger = log_scores[j] > exponents[j];
    sums[j] = larger ? sums[j] * shares[j] + 1 : sums[j] + shares[j];
    exponents[j] = larger ? log_scores[j] : exponents[j];
  }
}

std::vector<double> ScoreHistory::mean() const {
  std::vector<double> result(counts_.size());
  for (size_t j = 0; j < result.size(); ++j) {
    result[j] = all_.exponents[j] + std::log(all_.sums[j] / static_cast<double>(counts_[j]));
  }
  return result;
}

std::vector<double> ScoreHistory::window_mean() const {
  Sums sums;
  for (const std::vector<double>& query : last_) sums.add(query);
  const auto queries = std::ssize(last_);
  for (size_t j = 0; j < counts_.size(); ++j) {
    sums.exponents[j] += std::log(sums.sums[j] / static_cast<double>(std::min(queries, counts_[j])));
  }
  return sums.exponents;
}

std::vector<double> ScoreHistory::predicted(PredictionRule by, int64_t tokens) const {
  switch (by) {
    case PredictionRule::ema:
      return predicted_row(exact_, tokens);
    case PredictionRule::ema_paper:
      return predicted_row(paper_, tokens);
    case PredictionRule::mean:
      return mean();
    case PredictionRule::window_mean:
      return window_mean();
    case PredictionRule::last:
      return last_.empty() ? std::vector<double>() : last_.back();
  }
  return {};
}

}  // namespace kvbound::sim
