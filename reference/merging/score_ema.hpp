// Prediction of future queries' scores by an exponential moving average (EMA) of past queries' scores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/numerics/scaled_averages.hpp>

namespace kvbound::reference {

/// Moving averages of the scores of one KV head's entries, per query head of the group.
///
///     S' = a S + (1 - a) s,   c' = a c + (1 - a),   from S = c = 0
///     exact: s^ = S / c;   paper: s^ = S / (1 - a^tokens)
///
/// with s a query's score of the entry. S is stored as a mantissa times a power of e, so that logits of any
/// size neither overflow nor underflow; an update costs one exponential per entry and query head.
///
/// source  KeepKV (arXiv:2504.09936); `exact` is ours
/// proof   proofs/keep_kv.md#kkv-8
class ScoreEma {
 public:
  ScoreEma() = default;
  /// No entries yet.
  ///
  /// options  ema 0, or 2^-900 <= ema < 1; `normalisation`; `scores` is read by observe_logits only
  /// heads    query heads of the KV head
  ScoreEma(const PredictedScores& options, int64_t heads);

  int64_t heads() const { return std::ssize(sums_); }
  int64_t entries() const { return std::ssize(weights_); }
  /// Appends an entry that no query has seen.
  void append();
  /// Removes an entry; the last entry takes its place.
  void remove(int64_t entry);
  /// The averages of the chosen entries, in this order.
  ScoreEma of(std::span<const int64_t> chosen) const;
  /// Updates the averages of the first `seen` entries with a query's scores.
  ///
  /// log_scores  [heads, seen <= entries], ln s, natural log
  /// throws      ShapeMismatch; NonFinite if a score is NaN or infinite, without an
  ///             update for that query head
  void observe(MatrixView log_scores);
  /// The same with the logits of all entries that a query sees:
  /// observe(log_scores(options.scores, logits, votes)).
  ///
  /// logits  [heads, seen <= entries], natural log
  /// votes   [seen], p > 0; empty: 1 for all
  void observe_logits(MatrixView logits, VectorView votes = {});
  /// Sets an entry's prediction to that of a merged entry; the weight c does not
  /// change. No effect while c = 0.
  ///
  /// log_scores  [heads], ln s^_r
  /// tokens      as in log_predicted
  void replace(int64_t entry, VectorView log_scores, int64_t tokens);

  /// ln s^, natural log; -infinity for an entry that no query has seen.
  ///
  /// tokens  n at the prompt's end, n + t + 1 at decode step t
  double log_predicted(int64_t head, int64_t entry, int64_t tokens) const;
  /// ln s^ of all entries.   returns [heads, entries]
  Matrix log_predicted(int64_t tokens) const;

 private:
  friend ScoreEma prompt_ema(const LayerView& layer, int64_t kv_head, const PredictedScores& options);

  void accumulate(ScaledAverages& sums, VectorView log_scores);
  double log_divisor(int64_t entry, int64_t tokens) const;
  static double log_predicted(const ScaledAverages& sums, size_t entry, double log_divisor);

  PredictedScores options_;
  std::vector<ScaledAverages> sums_;  // [heads]: S, entry by entry
  std::vector<double> weights_;       // [entries]: c
  std::vector<double> exponentials_;  // [entries]: scratch of an update
};

/// A query's scores in the log domain.
///
///     attention: ln s_j = z_j - LSE_i(z_i + ln p_i);   raw: ln s_j = z_j
///
/// logits  [entries], natural log, of all entries that the query sees
/// votes   [entries], p > 0; empty: 1 for all
/// throws  ShapeMismatch; NonFinite if an attention score's logit is NaN or infinite
std::vector<double> log_scores(ScoreKind kind, VectorView logits, VectorView votes = {});

/// The moving averages after the prompt: over all recorded queries that can see an entry, in their order.
///
/// One KV head's work, on one thread: callers parallelise over KV heads.
///
/// kv_head  KV head whose n entries and query heads are averaged
/// throws   ShapeMismatch if no query is recorded; NonFinite
ScoreEma prompt_ema(const LayerView& layer, int64_t kv_head, const PredictedScores& options);

}  // namespace kvbound::reference
