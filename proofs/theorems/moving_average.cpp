// Scores predicted by a moving average: constant scores, and the two normalisations.
#include <algorithm>
#include <cmath>

#include <kvbound/proofs/engine/merging_case.hpp>
#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/reference/merging/score_ema.hpp>

#include "catalogue.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::Real;
using exact::Reals;
using oracle::Bounded;
using oracle::Row;

// The moving average of one entry's scores, given as logarithms in the order of the queries: its exact value
// and a bound on the reference's rounding error.
class MovingAverage {
 public:
  explicit MovingAverage(double ema) : ema_(ema) {}

  // Per score the reference rounds a distance of logarithms, an exponential (2), two products, 1 - a and a
  // sum; occasionally it moves a mantissa below 2^-64 into the exponent.
  void observe(const Bounded& log_score) {
    const Real u = oracle::unit_roundoff();
    sum_ = ema_ * sum_ + (1 - ema_) * exp(log_score.value);
    weight_ = ema_ * weight_ + (1 - ema_);
    least_ = count_ == 0 ? log_score.value : std::min<Real>(least_, log_score.value);
    most_ = count_ == 0 ? log_score.value : std::max<Real>(most_, log_score.value);
    inputs_ = std::max<Real>(inputs_, log_score.bound);
    ++count_;
    const Real farthest = most_ - least_ + 2 * inputs_ + count_ * kMantissa;
    relative_ +=
        u * (6 + farthest + 3 * kMantissa + abs(most_) + abs(least_) + count_ * kMantissa) * (1 + relative_);
  }

  int64_t count() const { return count_; }
  const Real& least() const { return least_; }
  const Real& most() const { return most_; }
  /// S by its definition: (1 - a) sum a^(k - i) s_i.
  const Real& sum() const { return sum_; }
  /// c = 1 - a^k
  const Real& weight() const { return weight_; }

  // ln S - ln divisor. The divisor is the weight c, with two roundings per query, or 1 - a^L.
  Bounded log_predicted(Normalisation normalisation, int64_t tokens) const {
    const Real u = oracle::unit_roundoff(), divisor = divided_by(normalisation, tokens);
    const Real value = log(sum_) - log(divisor);
    const Real of_divisor = normalisation == Normalisation::exact ? (3 * count_ + 2) * u : 8 * u;
    const Real logarithms =
        3 * u * (kMantissa + abs(log(divisor))) + u * (abs(value) + abs(most_) + abs(least_));
    return {value,
            relative_ * (1 + relative_) + inputs_ + of_divisor * (1 + of_divisor) + logarithms + 4 * u};
  }
  Real divided_by(Normalisation normalisation, int64_t tokens) const {
    return normalisation == Normalisation::exact ? weight_ : Real(1 - pow(ema_, static_cast<int>(tokens)));
  }

 private:
  // An upper bound of |ln mantissa|; mantissas are between 2^-64 and 2.
  static constexpr int kMantissa = 45;

  Real ema_, sum_ = 0, weight_ = 0, least_ = 0, most_ = 0;
  Real inputs_ = 0;    // the largest error of an input logarithm
  Real relative_ = 0;  // relative error of the reference's sum
  int64_t count_ = 0;
};

constexpr Normalisation kNormalisations[] = {Normalisation::exact, Normalisation::paper};
constexpr int64_t kConstantScores = 12;

PredictedScores options_of(const Instance& instance, Normalisation normalisation,
                           ScoreKind kind = ScoreKind::attention) {
  return {Prediction::ema, instance.ema, kind, normalisation};
}

// The sequences of log scores made from an instance: each row of its logits, and the first
// logit of each row repeated.
std::vector<std::vector<double>> sequences(const Instance& instance) {
  std::vector<std::vector<double>> result;
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    const VectorView row = instance.logits.row(r);
    result.emplace_back(row.begin(), row.end());
    result.emplace_back(kConstantScores, row.front());
  }
  return result;
}

// Calls look(average, tokens) after each score, with more tokens than queries that saw the entry.
template <class Look>
void for_each_average(const Instance& instance, const Look& look) {
  for (const std::vector<double>& sequence : sequences(instance)) {
    MovingAverage average(instance.ema);
    for (const double score : sequence) {
      average.observe(score);
      look(average, average.count() + instance.tokens());
    }
  }
}

// ---- KKV-8

void hold_averages(const Instance& instance, Outcome& outcome) {
  for (const Normalisation normalisation : kNormalisations) {
    for (const std::vector<double>& sequence : sequences(instance)) {
      reference::ScoreEma computed(options_of(instance, normalisation), 1);
      MovingAverage average(instance.ema);
      computed.append();
      for (const double score : sequence) {
        Matrix one(1, 1);
        one(0, 0) = score;
        computed.observe(one);
        average.observe(score);
        const int64_t tokens = average.count() + instance.tokens();
        outcome.reference_within("ln of a predicted score", computed.log_predicted(0, 0, tokens),
                                 average.log_predicted(normalisation, tokens));
      }
    }
  }
}

Row log_scores(ScoreKind kind, const Row& logits) {
  if (kind == ScoreKind::raw) return logits;
  const Bounded sum = oracle::log_sum_exp(logits);
  Row result;
  for (const Bounded& logit : logits) result.push_back(logit - sum);
  return result;
}

// Checks the averages after a prompt, in which an entry is seen only by queries at or after its position.
void hold_prompt(const Instance& instance, ScoreKind kind, Outcome& outcome) {
  const PromptLayer layer(instance);
  const int64_t tokens = instance.tokens();
  for (const Normalisation normalisation : kNormalisations) {
    const reference::ScoreEma computed =
        reference::prompt_ema(layer.view(), 0, options_of(instance, normalisation, kind));
    for (int64_t h = 0; h < instance.query_heads; ++h) {
      std::vector<MovingAverage> averages(tokens, MovingAverage(instance.ema));
      for (int64_t i = 0; i < layer.window(); ++i) {
        const Row scores = log_scores(kind, oracle::exactly(layer.seen(h, i)));
        for (size_t j = 0; j < scores.size(); ++j) averages[j].observe(scores[j]);
      }
      for (int64_t j = 0; j < tokens; ++j) {
        outcome.reference_within("ln of a score predicted after the prompt",
                                 computed.log_predicted(h, j, tokens),
                                 averages[j].log_predicted(normalisation, tokens));
      }
    }
  }
}

Outcome average_of_scores(const Instance& instance) {
  Outcome outcome;
  for_each_average(instance, [&](const MovingAverage& average, int64_t tokens) {
    const Real exact = average.sum() / average.weight(), most = exp(average.most());
    const Real whole = average.divided_by(Normalisation::paper, tokens), paper = average.sum() / whole;
    outcome.equal("c = 1 - a^k", average.weight(),
                  1 - pow(Real(instance.ema), static_cast<int>(average.count())), 16);
    outcome.at_most("s^ is at least the smallest score", exp(average.least() - average.most()), exact / most,
                    16 / average.weight());
    outcome.at_most("s^ is at most the largest score", exact / most, 1, 16 / average.weight());
    if (average.least() == average.most())
      outcome.equal("constant scores are predicted exactly", exact / most, 1, 16 / average.weight());
    outcome.equal("the paper's is (1 - a^k) / (1 - a^L) of it", paper / most,
                  exact / most * average.weight() / whole, 16 / average.weight());
  });
  hold_averages(instance, outcome);
  for (const ScoreKind kind : {ScoreKind::attention, ScoreKind::raw}) hold_prompt(instance, kind, outcome);
  return outcome;
}

Outcome paper_of_constant_scores(const Instance& instance) {
  Outcome outcome;
  for_each_average(instance, [&](const MovingAverage& average, int64_t tokens) {
    const Real paper = average.sum() / average.divided_by(Normalisation::paper, tokens);
    if (average.least() == average.most())
      outcome.equal("constant scores are predicted exactly", paper / exp(average.most()), 1,
                    16 / average.weight());
  });
  return outcome;
}

// The claim for the average of the logarithms instead of the scores.
Outcome average_of_logarithms(const Instance& instance) {
  Outcome outcome;
  for (const std::vector<double>& sequence : sequences(instance)) {
    MovingAverage average(instance.ema);
    Real logarithms = 0;
    for (const double score : sequence) {
      average.observe(score);
      logarithms = instance.ema * logarithms + (1 - Real(instance.ema)) * score;
      outcome.equal("ln s^ is the moving average of ln s", log(average.sum() / average.weight()),
                    logarithms / average.weight(),
                    (1 + abs(average.most()) + abs(average.least())) * 64 / average.weight());
    }
  }
  return outcome;
}

}  // namespace

std::vector<Theorem> moving_average_theorems() {
  return {
      {.id = "kkv-8",
       .title = "a moving average predicts constant scores only if it is divided by its weights",
       .statement = "S' = a S + (1 - a) s, c' = a c + (1 - a) from 0 has c = 1 - a^k after k queries, "
                    "and S / c is a mean of the scores: between the smallest and the largest, so exact "
                    "if they are constant; the paper's S / (1 - a^L), L tokens, is (1 - a^k) / (1 - a^L) "
                    "of that",
       .hypotheses = "0 <= a < 1",
       .source = "KeepKV (arXiv:2504.09936); the normalisation by c: ours",
       .ratio = "",
       .sizes = kMergingSizes,
       .property = {"kkv-8", "divided by its weights, it is a mean", average_of_scores},
       .weakened = {{"kkv-8:paper", "the paper's predicts constant scores exactly, too",
                     paper_of_constant_scores},
                    {"kkv-8:logarithms", "the same of the mean of logarithms", average_of_logarithms}}},
  };
}

}  // namespace kvbound::proofs
