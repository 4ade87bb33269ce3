// Predicts a query head's next scores from its past ones.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/merging/score_ema.hpp>

namespace kvbound::sim {

/// How the next score of an entry is predicted from the scores that earlier queries gave it.
enum class PredictionRule {
  ema,          ///< moving average, divided by the sum of its weights
  ema_paper,    ///< the same, divided by 1 - ema^tokens
  mean,         ///< mean of all scores
  window_mean,  ///< mean of the last `window` scores, or of all if there are fewer
  last,         ///< the last query's score
};
inline constexpr std::array<PredictionRule, 5> kForetellings{
    PredictionRule::ema, PredictionRule::ema_paper, PredictionRule::mean, PredictionRule::window_mean,
    PredictionRule::last};

constexpr std::string_view name(PredictionRule by) {
  return std::array<std::string_view, 5>{"ema", "ema-paper", "mean", "window-mean",
                                         "last"}[static_cast<size_t>(by)];
}

/// One query head's scores, query by query, in the log domain, where large logits
/// neither overflow nor underflow.
class ScoreHistory {
 public:
  /// ema     0 <= ema < 1
  /// window  >= 1, number of queries that window_mean averages
  ScoreHistory(double ema, int64_t window);

  /// Adds a query's scores of all entries that it sees: all entries of the query before, and possibly more.
  ///
  /// log_scores  [entries], natural log
  /// throws      ShapeMismatch if entries are missing; NonFinite
  void observe(VectorView log_scores);

  /// The predicted scores of the entries that queries have seen.
  ///
  ///     ema, ema_paper  reference::ScoreEma
  ///     mean            ln (1/m) sum of the m scores of an entry; window_mean: of its
  ///                     last min(m, window) scores
  ///
  /// tokens   number of positions that queries have seen so far, by which ema_paper is normalised
  /// returns  [entries], natural log
  std::vector<double> predicted(PredictionRule by, int64_t tokens) const;

 private:
  // Sums of scores per entry, scaled against overflow: the sum is sums * exp(exponents).
  struct Sums {
    std::vector<double> exponents, sums;
    void add(VectorView log_scores);
  };
  std::vector<double> mean() const;
  std::vector<double> window_mean() const;

  int64_t window_;
  reference::ScoreEma exact_, paper_;
  Sums all_;
  std::vector<int64_t> counts_;           // [entries]: number of queries that saw the entry
  std::deque<std::vector<double>> last_;  // scores of the last `window_` queries, the oldest first
};

}  // namespace kvbound::sim
