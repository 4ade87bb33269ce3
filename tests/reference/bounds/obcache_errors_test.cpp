// The bounds against scores in single and double precision, in every form in which a score can reasonably be
// evaluated: every result is within its bound, and the bounds are not so wide that they prove nothing.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/bounded.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/eviction/h2o.hpp>

#include "slack.hpp"
#include "support/random_layer.hpp"

namespace kvbound::test::obcache_errors_test {
namespace {

using namespace reference;

enum class Order { forward, backward, in_pairs };
constexpr Order kOrders[] = {Order::forward, Order::backward, Order::in_pairs};
// How the length || a v - b o || is evaluated.
enum class Length { by_elements, values_projected_first, by_inner_products };
constexpr Length kLengths[] = {Length::by_elements, Length::values_projected_first,
                               Length::by_inner_products};
// How o_(-j), the output without entry j, or 1 - A_j in its place, is evaluated.
enum class Without { one_less_weight, sum_of_others, undone, anew };
constexpr Without kWithouts[] = {Without::one_less_weight, Without::sum_of_others, Without::undone,
                                 Without::anew};
constexpr Change kChanges[] = {Change::value, Change::key, Change::joint, Change::exact};
constexpr Space kSpaces[] = {Space::head, Space::projected};

// One query and its entries, with numbers that single precision holds exactly.
struct Query {
  Query(double size, uint64_t seed, int64_t entries = 60) {
    Random random(seed);
    query = stored(random.matrix(1, 12, size));
    keys = stored(random.matrix(entries, 12));
    values = stored(random.matrix(entries, 12));
    projection = stored(random.matrix(12, 20));
  }

  Matrix query, keys, values, projection;
  std::vector<double> votes;  // empty: 1 for all
  double scale = 0.25;
};

// The same whose entries have 1 to 40 votes, and the first one most of the weight by its votes.
Query with_votes(Query query) {
  for (int64_t j = 0; j < query.keys.rows(); ++j) query.votes.push_back(static_cast<double>(1 + j * 13 % 40));
  query.votes.front() = 1e6;
  return query;
}

template <class Real>
using Vector = std::vector<Real>;

template <class Real>
Real sum(const Vector<Real>& terms, Order order) {
  if (order == Order::in_pairs && terms.size() > 2) {
    const auto middle = terms.begin() + static_cast<std::ptrdiff_t>(terms.size() / 2);
    return sum(Vector<Real>(terms.begin(), middle), order) + sum(Vector<Real>(middle, terms.end()), order);
  }
  Real total = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    total += terms[order == Order::backward ? terms.size() - 1 - i : i];
  }
  return total;
}

// The scores by their definitions, in one floating-point type and one form of evaluation.
template <class Real>
class Evaluation {
 public:
  Evaluation(const Query& given, Space space, Length length, Without without, Order order)
      : given_(given), space_(space), length_(length), without_(without), order_(order) {
    for (int64_t j = 0; j < given.keys.rows(); ++j) {
      using std::log;
      logits_.push_back(Real(given.scale) * dot(numbers(given.query.row(0)), numbers(given.keys.row(j))));
      voted_.push_back(logits_.back() + (given.votes.empty() ? Real(0) : Real(log(Real(given.votes[j])))));
    }
    const bool first = space == Space::projected && length == Length::values_projected_first;
    for (int64_t j = 0; j < given.values.rows(); ++j) {
      const Vector<Real> value = numbers(given.values.row(j));
      values_.push_back(first ? projected(value) : value);
    }
    projects_ = space == Space::projected && !first;
    weights_ = softmax(-1);
    output_ = mean(weights_);
  }

  Real score(Change change, size_t j) const {
    const Real weight = weights_[j], logit = logits_[j], one = 1;
    switch (change) {
      case Change::value:
        return weight * weight * squared(one, values_[j], Real(0), output_);
      case Change::key:
        return weight * weight * logit * logit * squared(one, values_[j], one, output_);
      case Change::joint:
        return weight * weight * squared(one + logit, values_[j], logit, output_);
      case Change::exact:
      case Change::slot:  // not tested here
        return exact(j);
    }
    return 0;  // unreachable
  }

 private:
  static Vector<Real> numbers(VectorView row) { return {row.begin(), row.end()}; }

  Real dot(const Vector<Real>& a, const Vector<Real>& b) const {
    Vector<Real> terms;
    for (size_t c = 0; c < a.size(); ++c) terms.push_back(a[c] * b[c]);
    return sum(terms, order_);
  }

  Vector<Real> projected(const Vector<Real>& x) const {
    Vector<Real> result;
    for (int64_t k = 0; k < given_.projection.cols(); ++k) {
      Vector<Real> column;
      for (int64_t c = 0; c < given_.projection.rows(); ++c) column.push_back(Real(given_.projection(c, k)));
      result.push_back(dot(x, column));
    }
    return result;
  }

  // x . y in the score's space; if W has not been applied to the values yet, both are projected first.
  Real inner(const Vector<Real>& x, const Vector<Real>& y) const {
    return projects_ ? dot(projected(x), projected(y)) : dot(x, y);
  }

  Vector<Real> softmax(int64_t without) const {
    using std::exp;
    Real largest = -std::numeric_limits<Real>::infinity();
    for (size_t j = 0; j < logits_.size(); ++j) {
      if (static_cast<int64_t>(j) != without && voted_[j] > largest) largest = voted_[j];
    }
    Vector<Real> weights;
    for (size_t j = 0; j < logits_.size(); ++j) {
      weights.push_back(static_cast<int64_t>(j) == without ? Real(0) : Real(exp(voted_[j] - largest)));
    }
    const Real total = sum(weights, order_);
    for (Real& weight : weights) weight /= total;
    return weights;
  }

  Vector<Real> mean(const Vector<Real>& weights) const {
    Vector<Real> result;
    for (size_t c = 0; c < values_.front().size(); ++c) {
      Vector<Real> terms;
      for (size_t j = 0; j < weights.size(); ++j) terms.push_back(weights[j] * values_[j][c]);
      result.push_back(sum(terms, order_));
    }
    return result;
  }

  Real squared(Real a, const Vector<Real>& x, Real b, const Vector<Real>& y) const {
    if (length_ == Length::by_inner_products) {
      return a * a * inner(x, x) - 2 * a * b * inner(x, y) + b * b * inner(y, y);
    }
    Vector<Real> difference;
    for (size_t c = 0; c < x.size(); ++c) difference.push_back(a * x[c] - b * y[c]);
    return inner(difference, difference);
  }

  Real exact(size_t j) const {
    const Real weight = weights_[j], one = 1;
    if (without_ == Without::anew) {
      return weight * weight * squared(one, values_[j], one, mean(softmax(static_cast<int64_t>(j))));
    }
    Vector<Real> others = weights_;
    others[j] = 0;
    const Real rest = without_ == Without::sum_of_others ? sum(others, order_) : Real(one - weight);
    if (without_ != Without::undone) {
      return (weight / rest) * (weight / rest) * squared(one, values_[j], one, output_);
    }
    Vector<Real> mean_of_others;
    for (size_t c = 0; c < output_.size(); ++c) {
      mean_of_others.push_back((output_[c] - weight * values_[j][c]) / rest);
    }
    return weight * weight * squared(one, values_[j], one, mean_of_others);
  }

  const Query& given_;
  Space space_;
  Length length_;
  Without without_;
  Order order_;
  bool projects_ = false;
  Vector<Real> logits_, voted_, weights_, output_;
  Vector<Vector<Real>> values_;
};

// The reference's scores, and the error bounds of any other evaluation.
struct Judged {
  Judged(const Query& given, Change change, Space space, const Arithmetic& arithmetic) {
    const std::vector<ValueSpace> spaces = value_spaces(space, given.projection, 1);
    Matrix squared_norms(1, given.values.rows());
    std::ranges::copy(spaces[0].squared_norms(given.values), squared_norms.row(0).begin());
    const ScoredCache cache{given.keys, given.values, squared_norms, spaces, given.votes};
    scored = scored_attention(change, given.query, cache, given.scale);
    const std::vector<ChangeSpace> sizes = change_spaces(space, given.projection, 1);
    errors =
        change_score_errors(change, given.query, given.keys, given.values,
                            MeasuredValues(given.values, sizes), sizes, given.scale, arithmetic, given.votes);
  }

  VectorView scores() const { return scored.scores.row(0); }
  VectorView bounds() const { return errors.row(0); }

  ScoredAttention scored;
  Matrix errors;
};

// Every form of one score, except forms of 1 - A that would lose all its digits.
template <class Real>
Slack slack_of(const Query& given, Change change, Space space, const Arithmetic& arithmetic) {
  const Judged judged(given, change, space, arithmetic);
  Slack slack;
  for (const Length length : kLengths) {
    for (const Order order : kOrders) {
      for (const Without without : kWithouts) {
        if (change != Change::exact && without != Without::anew) continue;
        const Evaluation<Real> evaluation(given, space, length, without, order);
        for (size_t j = 0; j < judged.scores().size(); ++j) {
          const double rest = 1 - judged.scored.weights(0, j);
          const bool lost = without != Without::anew && rest < 1e6 * arithmetic.unit;
          if (change == Change::exact && lost) continue;
          const auto score = static_cast<double>(evaluation.score(change, j));
          slack.add(score - judged.scores()[j], judged.bounds()[j],
                    "change " + std::to_string(static_cast<int>(change)) + ", form " +
                        std::to_string(static_cast<int>(length)) + " " +
                        std::to_string(static_cast<int>(without)) + ", entry " + std::to_string(j));
        }
      }
    }
  }
  return slack;
}

TEST(ObcacheErrors, HoldForEveryFormOfEveryScoreInSinglePrecision) {
  for (const Change change : kChanges) {
    for (const Space space : kSpaces) {
      std::vector<double> ratios;
      for (const double size : {0.1, 1.0, 4.0, 10.0}) {
        Slack slack = slack_of<float>(Query(size, 7), change, space, single_precision());
        ratios.push_back(slack.median());
      }
      EXPECT_LT(*std::ranges::min_element(ratios), 3000) << "they would say nothing";
    }
  }
}

TEST(ObcacheErrors, HoldForEveryFormOfEveryScoreOfEntriesWithVotes) {
  for (const Change change : kChanges) {
    for (const Space space : kSpaces) {
      std::vector<double> ratios;
      for (const double size : {0.1, 1.0, 4.0, 10.0}) {
        Slack slack = slack_of<float>(with_votes(Query(size, 7)), change, space, single_precision());
        ratios.push_back(slack.median());
      }
      EXPECT_LT(*std::ranges::min_element(ratios), 3000) << "they would say nothing";
    }
  }
}

// Every second entry's ln p is rounded up, the others' down.
TEST(ObcacheErrors, CountTheRoundingOfVotes) {
  constexpr double kRounding = 1e-4, kLogVotes = 30;
  Query given(0.001, 7);
  given.votes.assign(60, std::exp(kLogVotes));
  Query off = given;
  for (size_t j = 0; j < off.votes.size(); ++j) {
    off.votes[j] = std::exp(kLogVotes * (1 + (j % 2 == 0 ? kRounding : -kRounding)));
  }
  Arithmetic arithmetic = double_precision();
  arithmetic.exponential = kRounding;
  const Judged judged(given, Change::value, Space::head, arithmetic);
  const Judged theirs(off, Change::value, Space::head, arithmetic);
  for (size_t j = 0; j < off.votes.size(); ++j) {
    EXPECT_LE(std::abs(theirs.scores()[j] - judged.scores()[j]), judged.bounds()[j]);
  }
}

TEST(ObcacheErrors, HoldForEveryFormOfEveryScoreInDoublePrecision) {
  for (const Change change : kChanges) {
    for (const Space space : kSpaces) {
      for (const double size : {0.1, 1.0, 10.0, 100.0}) {
        slack_of<double>(Query(size, 8), change, space, double_precision());
      }
    }
  }
}

TEST(ObcacheErrors, HoldForTheTruthIn50DigitsToo) {
  for (const Change change : kChanges) {
    for (const Space space : kSpaces) {
      for (const double size : {0.1, 1.0, 10.0, 30.0}) {
        const Query given(size, 9, 24);
        const Judged judged(given, change, space, double_precision());
        const Evaluation<oracle::Real> truth(given, space, Length::by_elements, Without::anew,
                                             Order::forward);
        for (size_t j = 0; j < judged.scores().size(); ++j) {
          const auto score = static_cast<double>(truth.score(change, j));
          EXPECT_LE(std::abs(score - judged.scores()[j]), judged.bounds()[j])
              << "size " << size << ", entry " << j;
        }
      }
    }
  }
}

TEST(ObcacheErrors, AreFarBelowADifferentScore) {
  const Query given(4, 11);
  for (const Space space : kSpaces) {
    for (const Change change : kChanges) {
      const Judged judged(given, change, space, double_precision());
      for (size_t j = 0; j < judged.scores().size(); ++j) {
        EXPECT_LT(judged.bounds()[j], 1e-9 * judged.scores()[j]) << "a millionth is a thousand bounds";
      }
    }
    const Judged exact(given, Change::exact, space, single_precision());
    const Judged value(given, Change::value, space, single_precision());
    const auto largest =
        static_cast<size_t>(std::ranges::max_element(exact.scores()) - exact.scores().begin());
    EXPECT_GT(std::abs(exact.scores()[largest] - value.scores()[largest]), 50 * exact.bounds()[largest]);
  }
}

// Two entries, one of which has all weight but e^-gap.
Query two_entries(double gap) {
  Query given(1, 13, 2);
  for (double& x : given.keys.row(1)) x = 0;
  std::ranges::fill(given.query.row(0), 0.0);
  std::ranges::fill(given.keys.row(0), 0.0);
  given.query(0, 0) = 1;
  given.keys(0, 0) = gap;
  given.scale = 1;
  return given;
}

TEST(ObcacheErrors, AllowOneLessTheWeightOnlyAsLongAsHalfOfItIsLeft) {
  for (const double gap : {2.0, 20.0, 38.0, 300.0}) {
    const Query given = two_entries(gap);
    const Judged judged(given, Change::exact, Space::head, double_precision());
    const auto score = [&](Without without) {
      return Evaluation<double>(given, Space::head, Length::by_elements, without, Order::forward)
          .score(Change::exact, 0);
    };
    EXPECT_LE(std::abs(score(Without::anew) - judged.scores()[0]), judged.bounds()[0]);
    EXPECT_LT(judged.bounds()[0], 1e-2 * judged.scores()[0]) << "gap " << gap;
    const double printed = score(Without::one_less_weight);
    EXPECT_EQ(std::abs(printed - judged.scores()[0]) <= judged.bounds()[0], gap < 38) << "gap " << gap;
  }
}

TEST(ObcacheErrors, OfTheOnlyEntryAreZeroBecauseInfinityIsRight) {
  const Query given(1, 15, 1);
  const Judged judged(given, Change::exact, Space::projected, single_precision());
  EXPECT_EQ(judged.scores()[0], std::numeric_limits<double>::infinity());
  EXPECT_EQ(judged.bounds()[0], 0);
}

TEST(ObcacheErrors, GrowWithTheRoundingOfTheInputs) {
  Random random(17);
  Query exact(1, 17);
  exact.query = random.matrix(1, 12);
  exact.keys = random.matrix(60, 12);
  exact.values = random.matrix(60, 12);
  exact.projection = random.matrix(12, 20);
  Query rounded = exact;
  for (Matrix* matrix : {&rounded.query, &rounded.keys, &rounded.values, &rounded.projection}) {
    *matrix = stored(std::move(*matrix));
  }
  Arithmetic arithmetic = double_precision();
  arithmetic.input = 0x1p-8;
  for (const Change change : kChanges) {
    for (const Space space : kSpaces) {
      const Judged judged(exact, change, space, arithmetic),
          others(rounded, change, space, double_precision());
      Slack slack;
      for (size_t j = 0; j < 60; ++j) {
        slack.add(others.scores()[j] - judged.scores()[j], judged.bounds()[j], "entry " + std::to_string(j));
      }
      EXPECT_LT(slack.median(), 1000);
    }
  }
}

// A layer whose numbers single precision holds exactly.
RandomLayer stored_layer() {
  RandomLayer layer({4, 2, 8, 12}, 40, 10, 0, 21);
  for (Tensor* tensor : {&layer.all_keys, &layer.all_values, &layer.all_queries}) {
    *tensor = stored(std::move(*tensor));
  }
  layer.output_projection = stored(std::move(layer.output_projection));
  return layer;
}

TEST(ObcacheErrors, HoldForSumsOverTheWindowAndTheGroup) {
  const RandomLayer layer = stored_layer();
  const LayerView view = layer.view();
  const int64_t window = 6;
  for (const Space space : kSpaces) {
    for (const Change change : kChanges) {
      const Matrix exact = window_scores(view, window, change, space);
      const Matrix errors = window_score_errors(view, window, change, space, single_precision());
      const Matrix sums = group_sum(exact, 2),
                   sum_errors = group_sum_errors(exact, errors, 2, single_precision());
      Slack slack, sum_slack;
      Matrix computed(4, 40);
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t i = 0; i < window; ++i) {
          const int64_t visible = 40 - window + i + 1;
          Query seen(1, 1, 1);
          seen.scale = view.scale;
          seen.query = Matrix();
          seen.query.append_row(view.queries.slice(h).row(view.window_queries() - window + i));
          seen.keys = seen.values = seen.projection = Matrix();
          for (int64_t j = 0; j < visible; ++j) {
            seen.keys.append_row(view.keys.slice(h / 2).row(j));
            seen.values.append_row(view.values.slice(h / 2).row(j));
          }
          for (int64_t c = 0; c < 8; ++c) seen.projection.append_row(view.head_projection(h).row(c));
          const Evaluation<float> evaluation(seen, space, Length::by_inner_products, Without::anew,
                                             Order::forward);
          for (int64_t j = 0; j < visible; ++j) {
            const float before = static_cast<float>(computed(h, j));
            computed(h, j) = before + evaluation.score(change, static_cast<size_t>(j));
          }
        }
        for (int64_t j = 0; j < 40; ++j) slack.add(computed(h, j) - exact(h, j), errors(h, j), "window");
      }
      for (int64_t g = 0; g < 2; ++g) {
        for (int64_t j = 0; j < 40; ++j) {
          const float sum =
              static_cast<float>(computed(2 * g, j)) + static_cast<float>(computed(2 * g + 1, j));
          sum_slack.add(sum - sums(g, j), sum_errors(g, j), "group");
        }
      }
      EXPECT_LT(slack.median(), 5000);
      EXPECT_LT(sum_slack.median(), 5000);
    }
  }
}

TEST(ObcacheErrors, OfAccumulatedAttentionAreThoseOfItsMeanTimesTheWindow) {
  const RandomLayer layer = stored_layer();
  const Matrix mean = window_attention_errors(layer.view(), 6, single_precision());
  const Matrix sum = accumulated_attention_errors(layer.view(), 6, single_precision());
  for (int64_t j = 0; j < 40; ++j) EXPECT_EQ(sum(1, j), 6 * mean(1, j));
}

TEST(ObcacheErrors, OfRunningSumsHoldAtEveryStep) {
  Random random(23);
  const Arithmetic arithmetic = single_precision();
  double exact = 0, error = 0;
  float computed = 0;
  Slack slack;
  for (int step = 0; step < 1000; ++step) {
    const double contribution = random.uniform(0, 1), off = 1e-6 * random.uniform(0, 1);
    exact += contribution;
    computed += static_cast<float>(contribution + off);
    // Rounding the contribution to single precision is part of its error.
    error = running_sum_error(exact, error, off + contribution * 0x1p-24, arithmetic);
    slack.add(computed - exact, error, "step " + std::to_string(step));
  }
  EXPECT_LT(slack.median(), 100);
  EXPECT_EQ(running_sum_error(std::numeric_limits<double>::infinity(), 1, 1, arithmetic), 0);
}

}  // namespace
}  // namespace kvbound::test::obcache_errors_test
