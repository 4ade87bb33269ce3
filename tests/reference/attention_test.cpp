#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::attention_test {
namespace {

using oracle::all_within;
using oracle::within;
using test::matrix;
using test::message_of;
using test::Random;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Comparator, RefusesWhatProvesNothing) {
  const oracle::Bounded one(oracle::Real(1), oracle::Real("0.5"));
  EXPECT_TRUE(within(1.5, one));
  EXPECT_TRUE(within(0.5, one));
  EXPECT_FALSE(within(std::nextafter(1.5, 2), one));
  EXPECT_FALSE(within(std::nextafter(0.5, 0), one));
  EXPECT_FALSE(within(kNan, one));
  EXPECT_FALSE(within(kNan, {oracle::Real(1), oracle::Real(kInfinity)})) << "NaN fails under any bound";
  EXPECT_FALSE(within(kInfinity, {oracle::Real(1), oracle::Real(kInfinity)}));
  EXPECT_FALSE(within(1.0, {oracle::Real(1), oracle::Real(kNan)}))
      << "a bound that is no number holds nothing";
  const std::vector<double> zeros{0, 0}, numbers{1, 2}, with_nan{1, kNan};
  EXPECT_TRUE(all_within(numbers, oracle::exactly(numbers)));
  EXPECT_FALSE(all_within(with_nan, oracle::exactly(numbers)));
  EXPECT_FALSE(all_within(numbers, oracle::exactly(zeros)));
  EXPECT_FALSE(all_within(zeros, oracle::exactly(zeros))) << "a reference of zeros only";
  EXPECT_FALSE(all_within(numbers, oracle::exactly(VectorView(numbers).first(1)))) << "different sizes";
  EXPECT_FALSE(all_within(VectorView(), oracle::Row())) << "nothing compared";
  EXPECT_FALSE(all_within(numbers, {one, {oracle::Real(2), oracle::Real(2)}, one}));
  EXPECT_FALSE(all_within(zeros, {{oracle::Real(1), oracle::Real(2)}, {oracle::Real(1), oracle::Real(1)}}))
      << "bounds as large as the values";
}

TEST(Comparator, NoticesOneWrongElementAmongMany) {
  std::vector<double> numbers(1000, 1e6);
  const oracle::Row expected = oracle::exactly(numbers);
  numbers[617] = std::nextafter(1e6, 2e6);
  EXPECT_FALSE(all_within(numbers, expected));
}

TEST(Oracle, IsExactWhereDoubleIsNot) {
  using oracle::Real;
  // 1/3 in 50 digits; the error of its evaluation in double precision is at most u/3.
  const oracle::Bounded third = oracle::Bounded(1.0) / oracle::Bounded(3.0);
  EXPECT_LT(abs(third.value * 3 - 1), oracle::oracle_precision());
  EXPECT_TRUE(within(1.0 / 3, third));
  EXPECT_FALSE(within(std::nextafter(std::nextafter(1.0 / 3, 1), 1), third));
  // e^-20000 neither underflows nor loses digits: times e^20000 it is 1.
  EXPECT_LT(abs(exp(Real(-20000)) * exp(Real(20000)) - 1), oracle::oracle_precision());
  // gamma_2 = 2 u / (1 - 2 u) = 2^-52 / (1 - 2^-52).
  EXPECT_LT(abs(oracle::gamma(2) * (1 - ldexp(Real(1), -52)) - ldexp(Real(1), -52)), Real("1e-60"));
  EXPECT_EQ(oracle::gamma(0), 0);
}

TEST(AttentionLogits, AreScaledDotProducts) {
  // (1, 2).(3, 4) = 11, (1, 2).(0, -1) = -2; halved.
  const Matrix logits = attention_logits(matrix({{1, 2}}), matrix({{3, 4}, {0, -1}}), 0.5);
  ASSERT_EQ(logits.rows(), 1);
  ASSERT_EQ(logits.cols(), 2);
  EXPECT_EQ(logits(0, 0), 5.5);
  EXPECT_EQ(logits(0, 1), -1);
}

TEST(AttentionLogits, AreEmptyForNoTokensOrNoQueries) {
  EXPECT_EQ(attention_logits(Matrix(2, 3), Matrix(0, 3), 1).cols(), 0);
  EXPECT_EQ(attention_logits(Matrix(2, 3), Matrix(0, 3), 1).rows(), 2);
  EXPECT_EQ(attention_logits(Matrix(0, 3), Matrix(4, 3), 1).rows(), 0);
}

TEST(AttentionLogits, NameBothDimensionsThatDiffer) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { attention_logits(Matrix(1, 3), Matrix(2, 5), 1); }),
            "columns of queries is 3 but columns of keys is 5");
}

TEST(AttentionLogits, AreBitEqualForEqualKeysWhereverTheyStand) {
  Random random(1);
  for (const int64_t head_dim : {1, 7, 8, 64, 128}) {
    for (int64_t query_count = 1; query_count <= 33; ++query_count) {
      const Matrix queries = random.matrix(query_count, head_dim);
      Matrix keys = random.matrix(1000, head_dim);
      const std::vector<int64_t> places{0, 1, 3, 30, 31, 100, 254, 255, 256, 257, 511, 700, 998, 999};
      for (const int64_t place : places) std::ranges::copy(keys.row(0), keys.row(place).begin());
      for (const int64_t tokens : {1, 31, 255, 256, 257, 1000}) {
        const Matrix logits = attention_logits(queries, keys.view().middle_rows(0, tokens), 0.3);
        for (int64_t i = 0; i < query_count; ++i) {
          for (const int64_t place : places) {
            if (place >= tokens) continue;
            ASSERT_EQ(logits(i, place), logits(i, 0)) << head_dim << " " << query_count << " " << place;
          }
        }
      }
    }
  }
}

// More tokens than a matrix product takes at a time (512 or 1024).
TEST(AttentionLogits, AreBitEqualForEqualKeysInLargeBlocks) {
  Random random(4);
  for (const int64_t tokens : {5000, 33000}) {
    Matrix keys = random.matrix(tokens, 72);
    const std::vector<int64_t> places{0,    1,    9,    255,  256,  511,  512,
                                      2046, 2047, 2048, 4095, 4096, 4990, tokens - 1};
    for (const int64_t place : places) std::ranges::copy(keys.row(0), keys.row(place).begin());
    for (const int64_t query_count : {1, 5, 32, 128}) {
      const Matrix logits = attention_logits(random.matrix(query_count, 72), keys, 0.3);
      for (int64_t i = 0; i < query_count; ++i) {
        for (const int64_t place : places)
          ASSERT_EQ(logits(i, place), logits(i, 0)) << tokens << " " << place;
      }
    }
  }
}

TEST(AttentionLogits, TellTheLargestThatEachQuerySees) {
  Random random(5);
  const Matrix queries = random.matrix(3, 4), keys = random.matrix(600, 4);
  const Matrix expected = attention_logits(queries, keys, 0.5);
  Matrix logits(3, 600);
  const std::vector<int64_t> visible{300, 0, 600};
  const std::vector<double> largest = attention_logits(queries, keys, 0.5, visible, logits.view());
  EXPECT_TRUE(std::ranges::equal(logits.numbers(), expected.numbers()));
  EXPECT_EQ(largest[0], *std::ranges::max_element(expected.row(0).first(300)));
  EXPECT_EQ(largest[1], -kInfinity);
  EXPECT_EQ(largest[2], *std::ranges::max_element(expected.row(2)));
}

TEST(AttentionLogits, ThatAreVisibleMustBeNumbers) {
  Matrix keys(600, 1), logits(1, 600);
  keys(400, 0) = kNan;
  const auto largest = [&](int64_t visible) {
    return attention_logits(matrix({{1}}), keys, 1, std::vector{visible}, logits.view());
  };
  EXPECT_EQ(largest(400), std::vector{0.0});
  EXPECT_EQ(message_of<NonFinite>([&] { largest(401); }), "logits[400] is " + std::to_string(kNan));
  keys(400, 0) = -kInfinity;
  EXPECT_THROW(largest(401), NonFinite);
  EXPECT_EQ(message_of<ShapeMismatch>(
                [&] { attention_logits(matrix({{1}}), keys, 1, std::vector<int64_t>{}, logits.view()); }),
            "visible is 0 but rows of queries is 1");
}

TEST(AttentionLogits, OfATokenDoNotDependOnThoseThatFollow) {
  Random random(2);
  const Matrix queries = random.matrix(5, 9);
  const Matrix keys = random.matrix(257, 9);
  const Matrix all = attention_logits(queries, keys, 0.7);
  for (const int64_t tokens : {1, 255, 256}) {
    const Matrix first = attention_logits(queries, keys.view().middle_rows(0, tokens), 0.7);
    const Matrix last = attention_logits(queries, keys.view().middle_rows(257 - tokens, tokens), 0.7);
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t j = 0; j < tokens; ++j) {
        ASSERT_EQ(first(i, j), all(i, j));
        ASSERT_EQ(last(i, j), all(i, 257 - tokens + j));
      }
    }
  }
}

TEST(LogSumExp, IsTheLogarithmOfTheSum) {
  // ln(1 + 1) = ln 2; ln(e^10000 + e^10000) = 10000 + ln 2; a logit of -infinity adds nothing.
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector{0.0, 0.0}), std::log(2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector{1e4, 1e4}), 1e4 + std::log(2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector{-1e4, -1e4}), -1e4 + std::log(2.0));
  EXPECT_EQ(log_sum_exp(std::vector{-kInfinity, 3.0}), 3.0);
  EXPECT_EQ(log_sum_exp(std::vector{1e4, -1e4}), 1e4);
  EXPECT_EQ(log_sum_exp({}), -kInfinity);
  EXPECT_EQ(log_sum_exp(std::vector{-kInfinity, -kInfinity}), -kInfinity);
  const double nan = std::nan("");
  for (const std::vector<double>& logits : {std::vector{nan}, {nan, -kInfinity}, {-kInfinity, nan}, {nan, 1}})
    EXPECT_TRUE(std::isnan(log_sum_exp(logits)));
}

TEST(CausalSoftmax, SeesThePastOnly) {
  // Row 0, position 0, sees one token; row 1 sees two equal ones: 1/2 each; row 2 sees three.
  Matrix logits = matrix({{5, kNan, kInfinity}, {7, 7, kNan}, {2, 2, 2}});
  causal_softmax(logits.view(), 0);
  EXPECT_EQ(std::vector(logits.row(0).begin(), logits.row(0).end()), (std::vector{1.0, 0.0, 0.0}));
  EXPECT_EQ(std::vector(logits.row(1).begin(), logits.row(1).end()), (std::vector{0.5, 0.5, 0.0}));
  for (const double weight : logits.row(2)) EXPECT_EQ(weight, 1.0 / 3);
}

TEST(CausalSoftmax, SeesAllTokensFromAPositionBehindThem) {
  Matrix logits = matrix({{0, 0, 0, 0}});
  causal_softmax(logits.view(), 7);
  for (const double weight : logits.row(0)) EXPECT_EQ(weight, 0.25);
}

TEST(CausalSoftmax, RefusesVisibleNonNumbersByName) {
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    Matrix logits = matrix({{0, bad, 0}});
    EXPECT_NO_THROW(causal_softmax(Matrix(logits).view(), 0)) << "in the future";
    EXPECT_EQ(message_of<NonFinite>([&] { causal_softmax(logits.view(), 1); }),
              "logits[1] is " + std::to_string(bad));
  }
}

TEST(AttentionWeights, AreTheSoftmaxOfTheLogits) {
  // Logits ln 3 * (0, 1) at scale ln 3: e^0 : e^(ln 3) = 1 : 3.
  const Matrix weights = attention_weights(matrix({{1}}), matrix({{0}, {1}}), std::log(3.0), 1);
  EXPECT_DOUBLE_EQ(weights(0, 0), 0.25);
  EXPECT_DOUBLE_EQ(weights(0, 1), 0.75);
  EXPECT_THROW(attention_weights(Matrix(1, 2), Matrix(1, 3), 1, 0), ShapeMismatch);
  EXPECT_THROW(attention_weights(matrix({{1e200}}), matrix({{1e200}}), 1, 0), NonFinite);
}

TEST(Attention, IsTheMeanOfTheValuesUnderEqualLogits) {
  // Keys (1), (1): equal weights, so the mean of (2, 0) and (4, 8) is (3, 4); ln(e^3 + e^3) = 3 + ln 2.
  const AttentionOutput result = attention(matrix({{3}}), matrix({{1}, {1}}), matrix({{2, 0}, {4, 8}}), 1);
  EXPECT_EQ(result.output(0, 0), 3);
  EXPECT_EQ(result.output(0, 1), 4);
  EXPECT_DOUBLE_EQ(result.log_sum_exp[0], 3 + std::log(2.0));
}

TEST(Attention, CountsAnEntryAsOftenAsItHasVotes) {
  // Votes 3 and 1 under equal logits: (3 * 2 + 1 * 6) / 4 = 3; ln(3 e^0 + e^0) = ln 4.
  const AttentionOutput result =
      attention(matrix({{0}}), matrix({{1}, {1}}), matrix({{2}, {6}}), 1, std::vector{3.0, 1.0});
  EXPECT_DOUBLE_EQ(result.output(0, 0), 3);
  EXPECT_DOUBLE_EQ(result.log_sum_exp[0], std::log(4.0));
}

TEST(Attention, OfVotesIsThatOfDuplicatedEntries) {
  Random random(3);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Matrix queries = random.matrix(2, 3), keys = random.matrix(5, 3), values = random.matrix(5, 4);
    std::vector<double> votes;
    Matrix copied_keys, copied_values;
    for (int64_t j = 0; j < 5; ++j) {
      votes.push_back(static_cast<double>(1 + random.index(4)));
      for (int copy = 0; copy < votes.back(); ++copy) {
        copied_keys.append_row(keys.row(j));
        copied_values.append_row(values.row(j));
      }
    }
    // Each evaluation is within its bound of the same exact value, that of the duplicated cache.
    const oracle::Attention exact = oracle::attention(queries, copied_keys, copied_values, 0.9);
    const oracle::Attention voting = oracle::attention(queries, keys, values, 0.9, votes);
    const AttentionOutput actual = attention(queries, keys, values, 0.9, votes);
    for (size_t i = 0; i < 2; ++i) {
      for (size_t c = 0; c < 4; ++c) {
        const oracle::Bounded expected(exact.output[i][c].value, voting.output[i][c].bound);
        EXPECT_TRUE(within(actual.output(i, c), expected));
      }
      EXPECT_TRUE(within(actual.log_sum_exp[i], {exact.log_sum_exp[i].value, voting.log_sum_exp[i].bound}));
    }
  }
}

TEST(Attention, OfNoEntriesIsZeroWithNoMass) {
  const AttentionOutput result = attention(Matrix(2, 3), Matrix(0, 3), Matrix(0, 4), 1);
  ASSERT_EQ(result.output.rows(), 2);
  ASSERT_EQ(result.output.cols(), 4);
  for (const double entry : result.output.numbers()) EXPECT_EQ(entry, 0);
  EXPECT_EQ(result.log_sum_exp, (std::vector{-kInfinity, -kInfinity}));
}

TEST(Attention, KeepsTheLargestTermOfHugeLogits) {
  // Logits 10^4, -10^4, 10^4: the two large ones share the weight; the small one is 2 * 10^4 nats below.
  const AttentionOutput result =
      attention(matrix({{1e4}}), matrix({{1}, {-1}, {1}}), matrix({{1}, {77}, {2}}), 1);
  EXPECT_EQ(result.output(0, 0), 1.5);
  EXPECT_EQ(result.log_sum_exp[0], 1e4 + std::log(2.0));
}

TEST(Attention, NamesTheShapesAndNumbersThatAreWrong) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { attention(Matrix(1, 2), Matrix(3, 2), Matrix(4, 2), 1); }),
            "rows of keys is 3 but rows of values is 4");
  EXPECT_EQ(message_of<ShapeMismatch>(
                [] { attention(Matrix(1, 2), Matrix(3, 2), Matrix(3, 2), 1, std::vector{1.0}); }),
            "votes is 1 but rows of keys is 3");
  EXPECT_EQ(message_of<ShapeMismatch>([] { attention(Matrix(1, 2), Matrix(3, 5), Matrix(3, 2), 1); }),
            "columns of queries is 2 but columns of keys is 5");
  EXPECT_EQ(message_of<NonFinite>([] {
              attention(matrix({{1}}), matrix({{1}, {kNan}}), Matrix(2, 1), 1);
            }),
            "logits[1] is " + std::to_string(kNan));
  EXPECT_THROW(attention(matrix({{1}}), matrix({{1}}), Matrix(1, 1), kInfinity), NonFinite);
}

// Logits: |fl - exact| <= gamma_{head_dim} |scale| sum |q k|, and one rounding for the scale. Weights: the
// logits' errors and the subtraction's enter the exponentials, whose sum and quotient add theirs
// (oracle::softmax). Outputs: weights' errors times values, and gamma_{tokens} sum |w v|.
TEST(AttentionOracle, IsMetWithinTheDerivedBounds) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const int64_t tokens = 1 + random.index(40), head_dim = 1 + random.index(16), count = 1 + random.index(3);
    const double size = seed % 3 == 0 ? 60 : 1;  // a third of the cases has logits in the thousands
    const Matrix queries = random.matrix(count, head_dim, size), keys = random.matrix(tokens, head_dim, size);
    const Matrix values = random.matrix(tokens, 3);
    const int64_t first = random.index(tokens);
    const oracle::Rows logits = oracle::logits(queries, keys, 0.37);
    EXPECT_TRUE(all_within(attention_logits(queries, keys, 0.37), logits));
    EXPECT_TRUE(
        all_within(attention_weights(queries, keys, 0.37, first), oracle::causal_softmax(logits, first)));
    std::vector<double> votes;
    for (int64_t j = 0; j < tokens; ++j) votes.push_back(random.uniform(0.5, 9));
    for (const VectorView given : {VectorView(), VectorView(votes)}) {
      const oracle::Attention exact = oracle::attention(queries, keys, values, 0.37, given);
      const AttentionOutput actual = attention(queries, keys, values, 0.37, given);
      EXPECT_TRUE(all_within(actual.output, exact.output));
      EXPECT_TRUE(all_within(actual.log_sum_exp, exact.log_sum_exp));
    }
  }
}

TEST(AttentionOracle, IsMetForLogitsOfTenThousand) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    std::vector<double> logits;
    for (int64_t j = 0; j < 20; ++j) logits.push_back(random.uniform(-1e4, 1e4));
    logits.push_back(logits[3] - random.uniform(0, 30));  // two logits that share the weight
    EXPECT_TRUE(within(log_sum_exp(logits), oracle::log_sum_exp(oracle::exactly(logits))));
    Matrix weights = matrix({logits});
    causal_softmax(weights.view(), 20);
    EXPECT_TRUE(all_within(weights.row(0), oracle::softmax(oracle::exactly(logits))));
  }
}

// Sums of dyadic numbers are exact, so not even the last bit may move.
RC_GTEST_PROP(CausalSoftmaxProperty, IsNotMovedByAConstantAddedToAllLogits, ()) {
  const std::vector<double> logits = numbers(*test::dyadics(1, 40, 30));
  const double constant = (*test::dyadic(10000)).value;
  Matrix plain = matrix({logits}), shifted = plain;
  for (double& logit : shifted.row(0)) logit += constant;
  causal_softmax(plain.view(), plain.cols() - 1);
  causal_softmax(shifted.view(), plain.cols() - 1);
  for (int64_t j = 0; j < plain.cols(); ++j) RC_ASSERT(plain(0, j) == shifted(0, j));
}

// The exact weights sum to 1, and each is computed within its bound.
RC_GTEST_PROP(CausalSoftmaxProperty, GivesWeightsThatSumToOneWithinTheirBounds, ()) {
  const std::vector<double> logits = numbers(*test::dyadics(1, 20, 30));
  Matrix weights = matrix({logits});
  causal_softmax(weights.view(), weights.cols() - 1);
  oracle::Real total = 0, bound = oracle::oracle_precision();
  const oracle::Row exact = oracle::softmax(oracle::exactly(logits));
  for (size_t j = 0; j < exact.size(); ++j) {
    RC_ASSERT(weights.row(0)[j] >= 0);
    total += weights.row(0)[j];
    bound += exact[j].bound;
  }
  RC_ASSERT(abs(total - 1) <= bound);
}

}  // namespace
}  // namespace kvbound::reference::attention_test
