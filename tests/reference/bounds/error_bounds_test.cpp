// The bounds against single-precision computations in many orders of summation: every result must be within
// its bound, and the bounds must not be so wide that they prove nothing.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

#include "slack.hpp"
#include "support/random_layer.hpp"

namespace kvbound::test::error_bounds_test {
namespace {

using namespace reference;

// An order in which a list of terms is added.
using Order = std::function<float(const std::vector<float>&)>;

float forward(const std::vector<float>& terms) {
  float sum = 0;
  for (const float x : terms) sum += x;
  return sum;
}
float backward(const std::vector<float>& terms) {
  float sum = 0;
  for (auto x = terms.rbegin(); x != terms.rend(); ++x) sum += *x;
  return sum;
}
float smallest_first(std::vector<float> terms) {
  std::ranges::sort(terms, {}, [](float x) { return std::abs(x); });
  return forward(terms);
}
float in_pairs(const std::vector<float>& terms) {
  if (terms.size() <= 2) return forward(terms);
  const auto middle = terms.begin() + static_cast<std::ptrdiff_t>(terms.size() / 2);
  return in_pairs({terms.begin(), middle}) + in_pairs({middle, terms.end()});
}
const std::vector<Order> kOrders{forward, backward, smallest_first, in_pairs};

float single(double x) { return static_cast<float>(x); }

float dot(VectorView a, VectorView b, const Order& add) {
  std::vector<float> terms;
  for (size_t c = 0; c < a.size(); ++c) terms.push_back(single(a[c]) * single(b[c]));
  return add(terms);
}

// Attention of one query in single precision.
std::vector<float> attention_in_single(VectorView query, MatrixView keys, MatrixView values, double scale,
                                       const Order& add) {
  std::vector<float> weights;
  for (int64_t j = 0; j < keys.rows; ++j) weights.push_back(single(scale) * dot(query, keys.row(j), add));
  const float most = *std::ranges::max_element(weights);
  for (float& z : weights) z = std::exp(z - most);
  const float sum = add(weights);
  std::vector<float> output;
  for (int64_t c = 0; c < values.cols; ++c) {
    std::vector<float> terms;
    for (int64_t j = 0; j < keys.rows; ++j) {
      terms.push_back(weights[j] * single(values(j, c)));
    }
    output.push_back(add(terms) / sum);
  }
  return output;
}

// The ratios of bound to error for attention in single precision with sums in this order.
Slack attention_slack(double size, const Order& order, const Arithmetic& arithmetic) {
  Random random(7);
  const Matrix queries = stored(random.matrix(3, 24, size)), keys = stored(random.matrix(200, 24));
  const Matrix values = stored(random.matrix(200, 24));
  const double scale = 0.25;
  const AttentionOutput exact = attention(queries, keys, values, scale);
  const AttentionErrors errors = attention_errors(queries, keys, values, scale, {}, arithmetic);
  Slack slack;
  for (int64_t i = 0; i < queries.rows(); ++i) {
    const std::vector<float> output = attention_in_single(queries.row(i), keys, values, scale, order);
    for (int64_t c = 0; c < values.cols(); ++c) {
      slack.add(output[c] - exact.output(i, c), errors.output(i, c));
    }
  }
  return slack;
}

TEST(ArithmeticOf, TakesWhatAKernelDeclares) {
  const Arithmetic arithmetic = arithmetic_of({.precision = Precision::fp32,
                                               .accumulation_depth = 9,
                                               .product_depth = 5,
                                               .tensor_sums = 0.25,
                                               .tensor_chain = 4,
                                               .tensor_weighted_sums = 0.125,
                                               .weights_floor = 0.0625,
                                               .tensor_lengths = 0.5,
                                               .lengths_floor = 0.75,
                                               .gram_factor = true,
                                               .rescalings = 3});
  EXPECT_EQ(arithmetic.unit, single_precision().unit);
  EXPECT_EQ(arithmetic.accumulation_depth, 9);
  EXPECT_EQ(arithmetic.product_depth, 5);
  EXPECT_EQ(arithmetic.tensor_sums, 0.25);
  EXPECT_EQ(arithmetic.tensor_chain, 4);
  EXPECT_EQ(arithmetic.tensor_weighted_sums, 0.125);
  EXPECT_EQ(arithmetic.weights_floor, 0.0625);
  EXPECT_EQ(arithmetic.tensor_lengths, 0.5);
  EXPECT_EQ(arithmetic.lengths_floor, 0.75);
  EXPECT_TRUE(arithmetic.gram_factor);
  EXPECT_EQ(arithmetic.rescalings, 3);
  EXPECT_EQ(arithmetic_of({.precision = Precision::fp64}).unit, double_precision().unit);
  EXPECT_EQ(arithmetic_of({}).rescalings, single_precision().rescalings);
}

TEST(ErrorBounds, HoldForAttentionInEveryOrderAndForEverySizeOfLogits) {
  Arithmetic arithmetic = single_precision();
  arithmetic.rescalings = 0;
  for (const double size : {0.1, 1.0, 10.0, 100.0}) {
    for (const Order& order : kOrders) attention_slack(size, order, arithmetic);
  }
}

TEST(ErrorBounds, OfSumsInPairsAreCloseBecauseTheirAccumulationDepthIsSmall) {
  Arithmetic arithmetic = single_precision();
  arithmetic.rescalings = 0;
  arithmetic.accumulation_depth = 8;  // 2^8 > 200 tokens
  arithmetic.product_depth = 5;       // 2^5 > 24 columns
  for (const double size : {0.1, 1.0, 10.0, 100.0}) {
    EXPECT_LT(attention_slack(size, in_pairs, arithmetic).median(), 1000) << "logits of size " << size;
  }
}

// The logit errors that are worst for an output: weights of values above the output too
// large, all others too small.
TEST(ErrorBounds, HoldForLogitsThatConspireAndAreNotMuchLarger) {
  Random random(13);
  const Matrix queries = stored(random.matrix(2, 16)), keys = stored(random.matrix(300, 16));
  const Matrix values = stored(random.matrix(300, 4));
  Arithmetic arithmetic = single_precision();
  arithmetic.rescalings = 0;
  arithmetic.accumulation_depth = 9;
  const AttentionOutput exact = attention(queries, keys, values, 0.25);
  const Matrix off = logit_errors(queries, keys, 0.25, arithmetic);
  const AttentionErrors errors = attention_errors(queries, keys, values, 0.25, {}, arithmetic);
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t c = 0; c < 4; ++c) {
      Matrix logits = attention_logits(queries, keys, 0.25);
      for (int64_t j = 0; j < 300; ++j) {
        logits(i, j) += values(j, c) > exact.output(i, c) ? off(i, j) : -off(i, j);
      }
      const double largest = log_sum_exp(logits.row(i));
      double output = 0;
      for (int64_t j = 0; j < 300; ++j) output += std::exp(logits(i, j) - largest) * values(j, c);
      EXPECT_LE(output - exact.output(i, c), errors.output(i, c));
      EXPECT_GE(output - exact.output(i, c), errors.output(i, c) / 4)
          << "mostly that, the rest is other rounding";
    }
  }
}

TEST(ErrorBounds, AreFarBelowAWrongScale) {
  Random random(3);
  const Matrix queries = stored(random.matrix(2, 16, 3)), keys = stored(random.matrix(64, 16));
  const Matrix values = stored(random.matrix(64, 16));
  const AttentionOutput exact = attention(queries, keys, values, 0.25);
  const AttentionErrors errors = attention_errors(queries, keys, values, 0.25, {}, single_precision());
  const AttentionOutput wrong = attention(queries, keys, values, 0.25 * 1.01);
  for (int64_t i = 0; i < 2; ++i) {
    double worst = 0;
    for (int64_t c = 0; c < 16; ++c) {
      worst = std::max(worst, std::abs(wrong.output(i, c) - exact.output(i, c)) / errors.output(i, c));
    }
    EXPECT_GT(worst, 50);
  }
}

TEST(ErrorBounds, GrowWithTheRoundingOfTheInputs) {
  Random random(5);
  const Matrix queries = random.matrix(2, 16, 2), keys = random.matrix(50, 16),
               values = random.matrix(50, 16);
  const AttentionOutput exact = attention(queries, keys, values, 0.25);
  const AttentionOutput rounded = attention(stored(queries), stored(keys), stored(values), 0.25);
  Arithmetic arithmetic = double_precision();
  arithmetic.input = 0x1p-9;
  const AttentionErrors errors = attention_errors(queries, keys, values, 0.25, {}, arithmetic);
  Slack slack;
  for (int64_t i = 0; i < 2; ++i) {
    slack.add(exact.log_sum_exp[i] - rounded.log_sum_exp[i], errors.log_sum_exp[i]);
    for (int64_t c = 0; c < 16; ++c)
      slack.add(rounded.output(i, c) - exact.output(i, c), errors.output(i, c));
  }
  EXPECT_LT(slack.median(), 1000);
}

TEST(ErrorBounds, OfVotesCountTheirLogarithms) {
  Random random(9);
  const Matrix queries = stored(random.matrix(1, 8)), keys = stored(random.matrix(40, 8)),
               values = stored(random.matrix(40, 8));
  std::vector<double> votes(40, 1);
  const AttentionErrors without = attention_errors(queries, keys, values, 1, votes, single_precision());
  votes.assign(40, 1e6);
  const AttentionErrors with = attention_errors(queries, keys, values, 1, votes, single_precision());
  EXPECT_GT(with.output(0, 0), without.output(0, 0));
}

// Attention over keys and values whose errors all have the direction that moves the result most.
TEST(ErrorBounds, HoldForKeysAndValuesThatAreOffThemselvesAndAreHardlyLarger) {
  Random random(5);
  for (int round = 0; round < 20; ++round) {
    const int64_t tokens = 1 + random.index(12), head_dim = 8;
    const Matrix query = random.matrix(1, head_dim), keys = random.matrix(tokens, head_dim),
                 values = random.matrix(tokens, head_dim);
    Matrix key_errors(tokens, head_dim), value_errors(tokens, head_dim), moved = keys, moved_values = values;
    for (int64_t j = 0; j < tokens; ++j) {
      for (int64_t c = 0; c < head_dim; ++c) {
        key_errors(j, c) = 1e-4 * std::abs(random.normal());
        value_errors(j, c) = 1e-3 * std::abs(random.normal());
        moved(j, c) += std::copysign(key_errors(j, c), query(0, c));
        moved_values(j, c) += value_errors(j, c);
      }
    }
    const double scale = 0.4;
    const AttentionErrors off =
        attention_errors(query, keys, values, scale, {}, double_precision(), {key_errors, value_errors});
    const Matrix before = attention_logits(query, keys, scale), after = attention_logits(query, moved, scale);
    for (int64_t j = 0; j < tokens; ++j) {
      const double difference = after(0, j) - before(0, j);
      EXPECT_GE(off.logits(0, j), difference);
      EXPECT_LE(off.logits(0, j), difference * (1 + 1e-8));
    }
    const Matrix right = attention(query, keys, values, scale).output,
                 of_values = attention(query, keys, moved_values, scale).output,
                 of_both = attention(query, moved, moved_values, scale).output;
    const AttentionErrors values_off =
        attention_errors(query, keys, values, scale, {}, double_precision(), {{}, value_errors});
    for (int64_t c = 0; c < head_dim; ++c) {
      EXPECT_LE(std::abs(of_both(0, c) - right(0, c)), off.output(0, c));
      EXPECT_LE(of_values(0, c) - right(0, c), values_off.output(0, c));
      EXPECT_LE(values_off.output(0, c), (of_values(0, c) - right(0, c)) * (1 + 1e-8));
    }
  }
}

TEST(ErrorBounds, OfAKeyThatIsOffCountWhatStoringAZeroQueryMayCost) {
  constexpr double kFloor = 0x1p-30, kOff = 0.25;
  Arithmetic arithmetic = double_precision();
  arithmetic.input_floor = kFloor;
  const Matrix query(1, 4), key(1, 4);
  Matrix off(1, 4);
  std::ranges::fill(off.row(0), kOff);
  const AttentionErrors errors = attention_errors(query, key, key, 1, {}, arithmetic, {off, {}});
  EXPECT_GE(errors.logits(0, 0), 4 * kFloor * kOff);
}

TEST(ErrorBounds, ThereIsNoneForALogitOfAKeyThatHasNone) {
  Matrix query(1, 2), off(2, 2);
  query(0, 0) = 1;
  off(1, 1) = std::numeric_limits<double>::infinity();
  const Matrix keys(2, 2);
  Matrix values(2, 2);
  values(1, 0) = 3;
  const AttentionErrors errors = attention_errors(query, keys, values, 1, {}, double_precision(), {off, {}});
  EXPECT_EQ(errors.logits(0, 1), std::numeric_limits<double>::infinity());
  EXPECT_LT(errors.logits(0, 0), 1e-9);
  EXPECT_GE(errors.output(0, 0), 1.5) << "all of the weight may be on either";
  EXPECT_LT(errors.output(0, 0), 3.1) << "an output is a mean of the values";
}

TEST(ErrorBounds, OfAnEmptyCacheAreZero) {
  const Matrix queries(1, 4), nothing(0, 4);
  const AttentionErrors errors = attention_errors(queries, nothing, nothing, 1, {}, single_precision());
  for (const double error : errors.output.row(0)) EXPECT_EQ(error, 0);
}

TEST(ErrorBounds, HoldForProjectedValueNormsInBothNorms) {
  const LayerShape shape{4, 2, 16, 48};
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    Slack slack;
    Random random(11);
    const Tensor values = stored(random.tensor(2, 30, 16));
    const Matrix projection = stored(random.matrix(64, 48));
    const Matrix norms = projected_value_norms(shape, values, projection, norm);
    const Matrix errors =
        projected_value_norm_errors(shape, values, projection, norm, norms, single_precision());
    for (const Order& order : kOrders) {
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t j = 0; j < 30; ++j) {
          std::vector<float> columns;
          for (int64_t c = 0; c < 48; ++c) {
            std::vector<double> column;
            for (int64_t k = 0; k < 16; ++k) column.push_back(projection(h * 16 + k, c));
            const float x = dot(values.view().slice(h / 2).row(j), column, order);
            columns.push_back(norm == Norm::l1 ? std::abs(x) : x * x);
          }
          const float sum = order(columns);
          slack.add((norm == Norm::l1 ? sum : std::sqrt(sum)) - norms(h, j), errors(h, j));
        }
      }
    }
    EXPECT_LT(slack.median(), 1000);
  }
}

// The mean attention weights of one head's window in single precision, computed from a log-sum-exp.
std::vector<float> window_in_single(const LayerView& layer, int64_t head, int64_t window, const Order& add) {
  std::vector<std::vector<float>> terms(layer.prompt_tokens());
  const MatrixView keys = layer.keys.slice(layer.shape.kv_head_of(head));
  for (int64_t i = 0; i < window; ++i) {
    const VectorView query = layer.queries.slice(head).row(layer.window_queries() - window + i);
    const int64_t visible = layer.prompt_tokens() - window + i + 1;
    std::vector<float> logits;
    for (int64_t j = 0; j < visible; ++j) {
      logits.push_back(single(layer.scale) * dot(query, keys.row(j), add));
    }
    const float most = *std::ranges::max_element(logits);
    std::vector<float> exponentials;
    for (const float z : logits) exponentials.push_back(std::exp(z - most));
    const float log_sum_exp = most + std::log(add(exponentials));
    for (size_t j = 0; j < logits.size(); ++j) terms[j].push_back(std::exp(logits[j] - log_sum_exp));
  }
  std::vector<float> mean;
  for (const std::vector<float>& column : terms) mean.push_back(add(column) / static_cast<float>(window));
  return mean;
}

TEST(ErrorBounds, HoldForTheWindowAndWhatIsMadeOfIt) {
  const RandomLayer random({4, 2, 8, 12}, 60, 10, 0, 21);
  RandomLayer rounded = random;
  for (Tensor* tensor : {&rounded.all_keys, &rounded.all_values, &rounded.all_queries}) {
    *tensor = stored(std::move(*tensor));
  }
  const LayerView layer = rounded.view();
  const int64_t window = 6;
  const Matrix exact = window_attention(layer, window);
  const Matrix errors = window_attention_errors(layer, window, single_precision());
  const Matrix means = group_mean(max_pool(exact, 5), 2);
  const Matrix mean_errors =
      group_mean_errors(max_pool(exact, 5), max_pool_errors(errors, 5), 2, single_precision());
  Slack slack, mean_slack;
  for (const Order& order : kOrders) {
    Matrix computed(4, 60);
    for (int64_t h = 0; h < 4; ++h) {
      std::ranges::copy(window_in_single(layer, h, window, order), computed.row(h).begin());
      for (int64_t j = 0; j < 60; ++j) slack.add(computed(h, j) - exact(h, j), errors(h, j));
    }
    const Matrix pooled = max_pool(computed, 5);
    for (int64_t g = 0; g < 2; ++g) {
      for (int64_t j = 0; j < 60; ++j) {
        const float mean = (single(pooled(2 * g, j)) + single(pooled(2 * g + 1, j))) / 2;
        mean_slack.add(mean - means(g, j), mean_errors(g, j));
      }
    }
  }
  EXPECT_LT(slack.median(), 1000);
  EXPECT_LT(mean_slack.median(), 1000);
}

TEST(ErrorBounds, HoldForStageTwoScoresOfFactorsThatAreOff) {
  Random random(31);
  for (const GqaProduct gqa : {GqaProduct::mean_of_products, GqaProduct::product_of_means}) {
    Slack slack;
    Matrix scores(3, 20), score_errors(3, 20), norms(3, 20), norm_errors(3, 20), claimed(3, 20),
        claimed_norms(3, 20);
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t j = 0; j < 20; ++j) {
        scores(h, j) = random.uniform(0, 0.01);
        norms(h, j) = random.uniform(0, 30);
        score_errors(h, j) = 1e-6 * random.uniform(0, 1);
        norm_errors(h, j) = 1e-4 * random.uniform(0, 1);
        claimed(h, j) = scores(h, j) + score_errors(h, j) * random.uniform(-1, 1);
        claimed_norms(h, j) = norms(h, j) + norm_errors(h, j) * random.uniform(-1, 1);
      }
    }
    const std::vector<double> exact = stage_two_scores(scores, norms, 1e-4, gqa);
    const std::vector<double> theirs = stage_two_scores(claimed, claimed_norms, 1e-4, gqa);
    const std::vector<double> errors =
        stage_two_score_errors(scores, score_errors, norms, norm_errors, 1e-4, gqa, single_precision());
    for (size_t j = 0; j < exact.size(); ++j) slack.add(theirs[j] - exact[j], errors[j]);
    EXPECT_LT(slack.median(), 100);
  }
}

}  // namespace
}  // namespace kvbound::test::error_bounds_test
