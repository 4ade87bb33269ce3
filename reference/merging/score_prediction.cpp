#include "score_prediction.hpp"

#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::reference {

void ScorePrediction::begin(const ScoreEma* known, std::span<const int64_t> kept, int64_t tokens) {
  tokens_ = tokens;
  logits_ = {};
  if (!averages()) return;
  ema_ = known ? known->of(kept) : ScoreEma(*options_, heads_);
  while (ema_.entries() < std::ssize(kept)) ema_.append();
}

void ScorePrediction::enter() {
  if (averages()) ema_.append();
}

void ScorePrediction::leave(int64_t entry) {
  if (averages()) ema_.remove(entry);
}

void ScorePrediction::observe(const Matrix& logits, VectorView votes, int64_t tokens) {
  tokens_ = tokens;
  if (averages()) {
    ema_.observe_logits(logits, votes);
  } else {
    logits_ = logits;
  }
}

void ScorePrediction::replace(int64_t entry, VectorView log_scores) {
  if (averages()) ema_.replace(entry, log_scores, tokens_);
}

Matrix ScorePrediction::all() const {
  if (!options_) return Matrix(heads_, 0);
  return averages() ? ema_.log_predicted(tokens_) : logits_;
}

Matrix ScorePrediction::of(std::span<const int64_t> entries) const {
  if (!averages()) return columns_of(all(), entries);
  Matrix scores(heads_, std::ssize(entries));
  for (int64_t h = 0; h < heads_; ++h) {
    for (size_t j = 0; j < entries.size(); ++j) scores.row(h)[j] = ema_.log_predicted(h, entries[j], tokens_);
  }
  return scores;
}

}  // namespace kvbound::reference
