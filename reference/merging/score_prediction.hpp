// What is predicted of the entries of one KV head's cache, from the prompt's end on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

#include "score_ema.hpp"

namespace kvbound::reference {

/// Predicted scores, by a moving average or by the last queries alone.
///
///     ema      score_ema.hpp
///     current  ln s^_j = z_j of the last query
///
/// of every query head of the group; nothing, for methods that do without.
class ScorePrediction {
 public:
  /// heads  query heads of the KV head
  ScorePrediction(const std::optional<PredictedScores>& options, int64_t heads)
      : options_(options), heads_(heads) {}

  /// The entries of a compressed cache; nothing is known of the queries to come but what `known` tells.
  ///
  /// known   of all entries before; null: averages start anew
  /// kept    ascending indices of those that are in the cache
  /// tokens  so far
  void begin(const ScoreEma* known, std::span<const int64_t> kept, int64_t tokens);
  /// One more entry, which no query has seen.
  void enter();
  /// The last entry takes its place.
  void leave(int64_t entry);
  /// Takes in a step's queries.
  ///
  /// logits  [heads, entries], natural log
  /// votes   [entries]; empty: 1 for all
  /// tokens  n + t + 1
  void observe(const Matrix& logits, VectorView votes, int64_t tokens);
  /// What a merged entry takes over.
  ///
  /// log_scores  [heads], ln s^_r
  void replace(int64_t entry, VectorView log_scores);

  /// ln s^ of all entries, natural log [heads, entries]; no columns where nothing is predicted.
  Matrix all() const;
  /// Of some.
  Matrix of(std::span<const int64_t> entries) const;

 private:
  bool averages() const { return options_ && options_->predict == Prediction::ema; }

  std::optional<PredictedScores> options_;
  int64_t heads_;
  int64_t tokens_ = 0;
  ScoreEma ema_;
  Matrix logits_;  // predict=current: the last ones
};

}  // namespace kvbound::reference
