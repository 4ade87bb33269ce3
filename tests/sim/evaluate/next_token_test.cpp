// Distributions of the next token, against definitions in 50 digits and their properties.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <boost/multiprecision/cpp_bin_float.hpp>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/evaluate/next_token.hpp>

namespace kvbound::sim::next_token_test {
namespace {

using Real = boost::multiprecision::cpp_bin_float_50;
using Logits = std::vector<float>;

std::vector<Real> exact_probabilities(const Logits& logits) {
  std::vector<Real> weights;
  Real sum = 0;
  for (const float z : logits) sum += weights.emplace_back(exp(Real(z)));
  for (Real& weight : weights) weight /= sum;
  return weights;
}

Real exact_divergence(const Logits& p, const Logits& q) {
  const std::vector<Real> of_p = exact_probabilities(p), of_q = exact_probabilities(q);
  Real sum = 0;
  for (size_t i = 0; i < of_p.size(); ++i) sum += of_p[i] * log(of_p[i] / of_q[i]);
  return sum;
}

Logits any_logits(size_t count, int spread) {
  Logits logits;
  for (size_t i = 0; i < count; ++i)
    logits.push_back(
        static_cast<float>(*rc::gen::resize(rc::kNominalSize, rc::gen::inRange(-1000, 1001)) * spread) /
        1000);
  return logits;
}

double divergence_of(const Logits& p, const Logits& q) {
  return divergence(log_probabilities(p), log_probabilities(q));
}

// Logits of magnitude m have normalisers of m + ln n; both are rounded at most a few times.
constexpr double kUnit = 0x1p-53;

RC_GTEST_PROP(LogProbabilities, AreTheDefinition, ()) {
  const int spread = *rc::gen::element(1, 30, 600);
  const Logits logits = any_logits(*rc::gen::inRange<size_t>(1, 40), spread);
  const std::vector<Real> exact = exact_probabilities(logits);
  const std::vector<double> found = log_probabilities(logits);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = static_cast<double>(log(exact[i]));
    RC_ASSERT(std::abs(found[i] - expected) <= 16 * kUnit * (2 * spread + 4));
  }
}

// ln(1 + sum_{j != i} exp(z_j - z_i)), by the first two terms of its series where 50 digits
// do not hold 1 + the sum.
double exact_negative_log_likelihood(const Logits& logits, size_t token) {
  Real others = 0;
  for (size_t j = 0; j < logits.size(); ++j) {
    if (j != token) others += exp(Real(logits[j]) - Real(logits[token]));
  }
  return static_cast<double>(others < Real(1e-25) ? Real(others - others * others / 2)
                                                  : Real(log(1 + others)));
}

RC_GTEST_PROP(NegativeLogLikelihood, IsTheDefinition, ()) {
  const Logits logits = any_logits(*rc::gen::inRange<size_t>(1, 40), *rc::gen::element(1, 30, 300));
  for (size_t i = 0; i < logits.size(); ++i) {
    const double found = negative_log_likelihood(logits, static_cast<int64_t>(i));
    // Terms are not negative, so that the error is relative, also where p is nearly 1.
    RC_ASSERT(std::abs(found - exact_negative_log_likelihood(logits, i)) <= 1e-13 * found);
  }
}

TEST(NegativeLogLikelihood, OfANearlyCertainTokenIsNotRoundedAway) {
  EXPECT_NEAR(negative_log_likelihood(Logits{50, 0}, 0), std::exp(-50.0), 1e-30);
  EXPECT_EQ(negative_log_likelihood(Logits{3}, 0), 0);
  EXPECT_NEAR(negative_log_likelihood(Logits{-1e4F, 1e4F}, 0), 2e4, 1e-9);
}

RC_GTEST_PROP(Divergence, IsTheDefinition, ()) {
  const int spread = *rc::gen::element(1, 30, 600);
  const size_t count = *rc::gen::inRange<size_t>(1, 40);
  const Logits p = any_logits(count, spread), q = any_logits(count, spread);
  const double expected = static_cast<double>(exact_divergence(p, q)), found = divergence_of(p, q);
  RC_ASSERT(found >= 0);
  // Each d is off by the errors of two log probabilities, and KL's derivative by d is below 1.
  RC_ASSERT(std::abs(found - expected) <= 64 * kUnit * (2 * spread + 4) + 1e-13 * expected);
}

RC_GTEST_PROP(Divergence, OfNearlyEqualDistributionsIsNoDifferenceOfLargeSums, ()) {
  const Logits p = any_logits(30, 4);
  Logits q = p;
  q[*rc::gen::inRange(0, 30)] += 0x1p-14F;
  const double expected = static_cast<double>(exact_divergence(p, q)), found = divergence_of(p, q);
  RC_ASSERT(expected > 0);
  // d is about 2^-14 and known to 2^-50: KL, its square, to twice the relative error.
  RC_ASSERT(std::abs(found - expected) <= 0x1p-30 * expected);
}

TEST(Divergence, OfEqualLogitsIsExactlyZero) {
  const Logits logits{1.5F, -3, 88, 0.25F};
  EXPECT_EQ(divergence_of(logits, logits), 0);
}

TEST(Divergence, IsFiniteForLogitsThatOverflowAsExponentials) {
  const Logits p{1e4F, 0, -1e4F}, q{-1e4F, 0, 1e4F};
  EXPECT_NEAR(divergence_of(p, q), 2e4, 1e-9);
}

TEST(LogProbabilities, RefuseLogitsThatAreNoNumbers) {
  EXPECT_THROW(log_probabilities(Logits{1, std::numeric_limits<float>::quiet_NaN()}), NonFinite);
  EXPECT_THROW(log_probabilities(Logits{1, std::numeric_limits<float>::infinity()}), NonFinite);
}

TEST(MostLikely, IsTheSmallestIndexOfTheLargestLogit) {
  EXPECT_EQ(most_likely(Logits{1, 3, 3, 2}), 1);
  EXPECT_EQ(most_likely(Logits{-1}), 0);
}

}  // namespace
}  // namespace kvbound::sim::next_token_test
