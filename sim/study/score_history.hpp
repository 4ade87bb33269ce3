// What a query head's past scores say of the next query's.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/merging/score_ema.hpp>

namespace kvbound::sim {

/// How the next score of an entry is predicted, from the scores of the queries that have seen it.
enum class PredictionRule {
  ema,          ///< moving average, divided by the weights that were really added up
  ema_paper,    ///< the same, divided by 1 - ema^tokens
  mean,         ///< of all of them
  window_mean,  ///< of the last few, or of as many as there are
  last,         ///< the last query's itself
};
inline constexpr std::array<PredictionRule, 5> kForetellings{
    PredictionRule::ema, PredictionRule::ema_paper, PredictionRule::mean, PredictionRule::window_mean,
    PredictionRule::last};

constexpr std::string_view name(PredictionRule by) {
  return std::array<std::string_view, 5>{"ema", "ema-paper", "mean", "window-mean",
                                         "last"}[static_cast<size_t>(by)];
}

/// One query head's scores, query by query, in the log domain: logits of any size neither overflow nor vanish.
class ScoreHistory {
 public:
  /// ema     0 <= ema < 1
  /// window  >= 1, queries that window_mean is over
  ScoreHistory(double ema, int64_t window);

  /// A query's scores of all entries that it sees: those of the query before, and perhaps more.
  ///
  /// log_scores  [entries], natural log
  /// throws      ShapeMismatch if entries are missing; NonFinite
  void observe(VectorView log_scores);

  /// What is predicted of the entries that a query has seen.
  ///
  ///     ema, ema_paper  reference::ScoreEma
  ///     mean            ln (1/m) sum of the m scores of an entry; window_mean: of its last min(m, window) ones
  ///
  /// tokens   positions that the queries so far have seen, by which ema_paper is normalised
  /// returns  [entries], natural log
  std::vector<double> predicted(PredictionRule by, int64_t tokens) const;

 private:
  // ln of a sum of scores per entry: sums exp(exponents).
  struct Sums {
    std::vector<double> exponents, sums;
    void add(VectorView log_scores);
  };
  std::vector<double> mean() const;
  std::vector<double> window_mean() const;

  int64_t window_;
  reference::ScoreEma exact_, paper_;
  Sums all_;
  std::vector<int64_t> counts_;           // [entries]: queries that saw it
  std::deque<std::vector<double>> last_;  // at most `window_` queries' scores, the oldest first
};

}  // namespace kvbound::sim
