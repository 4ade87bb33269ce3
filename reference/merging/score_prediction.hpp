// Predicted scores of the entries of one KV head's cache, from the prompt's end on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

#include "score_ema.hpp"

namespace kvbound::reference {

/// Predicted scores for every query head of the group, by a moving average
/// or by the last query alone; none for methods that do not predict scores.
///
///     ema      score_ema.hpp
///     current  ln s^_j = z_j of the last query
class ScorePrediction {
 public:
  /// heads  query heads of the KV head
  ScorePrediction(const std::optional<PredictedScores>& options, int64_t heads)
      : options_(options), heads_(heads) {}

  /// Starts with the entries of a compressed cache.
  ///
  /// known   averages of all entries before the compression; null: averages start anew
  /// kept    ascending indices of the kept entries
  /// tokens  number of tokens so far
  void begin(const ScoreEma* known, std::span<const int64_t> kept, int64_t tokens);
  /// Appends an entry that no query has seen.
  void enter();
  /// Removes an entry; the last entry takes its place.
  void leave(int64_t entry);
  /// Updates the predictions with a step's queries.
  ///
  /// logits  [heads, entries], natural log
  /// votes   [entries]; empty: 1 for all
  /// tokens  n + t + 1
  void observe(const Matrix& logits, VectorView votes, int64_t tokens);
  /// Sets an entry's prediction to that of a merged entry.
  ///
  /// log_scores  [heads], ln s^_r
  void replace(int64_t entry, VectorView log_scores);

  /// ln s^ of all entries, natural log [heads, entries]; no columns for methods that do not predict scores.
  Matrix all() const;
  /// ln s^ of the given entries.
  Matrix of(std::span<const int64_t> entries) const;

 private:
  bool averages() const { return options_ && options_->predict == Prediction::ema; }

  std::optional<PredictedScores> options_;
  int64_t heads_;
  int64_t tokens_ = 0;
  ScoreEma ema_;
  Matrix logits_;  // predict=current: the last query's
};

}  // namespace kvbound::reference
