#include <algorithm>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <boost/multiprecision/cpp_int.hpp>

#include <kvbound/proofs/oracle/bounded.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/allocation.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::allocation_test {
namespace {

using test::integer;
using test::matrix;
using test::message_of;
using Counts = std::vector<int64_t>;
using Integer = boost::multiprecision::cpp_int;
using Rational = boost::multiprecision::cpp_rational;
using Real = oracle::Real;

int64_t total(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

Decimal decimal(const std::string& text) { return *parse_decimal(text); }

Integer floor_of(const Rational& number) {
  const Integer top = numerator(number), bottom = denominator(number);
  const Integer quotient = top / bottom;
  return top < 0 && quotient * bottom != top ? quotient - 1 : quotient;
}

// Floors, plus one for the largest fractional parts until the total is reached; equal
// fractions by ascending index.
template <class Number, class Floor>
Counts largest_remainders(const std::vector<Number>& shares, int64_t sum, const Floor& floor) {
  Counts counts;
  std::vector<Number> fractions;
  for (const Number& share : shares) {
    counts.push_back(static_cast<int64_t>(floor(share)));
    fractions.push_back(share - counts.back());
  }
  while (total(counts) < sum) {
    const auto best = std::ranges::max_element(fractions);
    ++counts[best - fractions.begin()];
    *best = -1;
  }
  return counts;
}

// AdaKV by a full sort and in rational arithmetic.
Counts adakv_by_definition(Decimal safeguard, const std::vector<std::vector<double>>& scores,
                           const Counts& candidates) {
  std::vector<std::pair<size_t, size_t>> entries;
  for (size_t h = 0; h < scores.size(); ++h) {
    for (size_t i = 0; i < scores[h].size(); ++i) entries.emplace_back(h, i);
  }
  std::ranges::stable_sort(entries, std::ranges::greater(),
                           [&](const auto& entry) { return scores[entry.first][entry.second]; });
  Counts found(scores.size());
  for (int64_t i = 0; i < total(candidates); ++i) ++found[entries[i].first];
  Integer unit = 1;
  for (int place = 0; place < safeguard.places; ++place) unit *= 10;
  const Rational s(Integer(safeguard.digits), unit);
  std::vector<Rational> shares;
  for (size_t h = 0; h < found.size(); ++h) shares.push_back((1 - s) * found[h] + s * candidates[h]);
  return largest_remainders(shares, total(candidates), floor_of);
}

struct Heads {
  std::vector<std::vector<double>> scores;
  Matrix matrix;
  Counts candidates;
};

// Heads with few candidates, and often with few different scores.
Heads any_heads() {
  Heads heads;
  const int64_t count = *integer(1, 6), columns = *integer(0, 12);
  heads.matrix = Matrix(count, columns);
  const int64_t levels = *integer(0, 1) == 0 ? 3 : 1000000;
  for (int64_t h = 0; h < count; ++h) {
    heads.scores.emplace_back();
    for (int64_t i = 0; i < columns; ++i) {
      heads.matrix(h, i) = static_cast<double>(*integer(0, levels));
      heads.scores.back().push_back(heads.matrix(h, i));
    }
    heads.candidates.push_back(*integer(0, columns));
  }
  return heads;
}

Decimal any_safeguard() {
  const int64_t kind = *integer(0, 4);
  if (kind == 0) return decimal("0");
  if (kind == 1) return decimal("1");
  if (kind == 2) return decimal("0." + std::to_string(*integer(1, 9)));
  return decimal("0." + std::to_string(*integer(1, 999999999999999999)));
}

TEST(AdakvBudgets, SharesOutByWhoseScoresAreLargest) {
  // Of the 4 largest scores 9 8 7 6 three are head 0's: f = (3, 1); with s = 1/5 the shares are 2.8 and 1.2.
  const Matrix scores = matrix({{9, 8, 1, 6}, {2, 7, 3, 0}});
  EXPECT_EQ(adakv_budgets({decimal("0.2")}, scores, Counts{2, 2}), (Counts{3, 1}));
  EXPECT_EQ(adakv_budgets({decimal("0")}, scores, Counts{2, 2}), (Counts{3, 1}));
  EXPECT_EQ(adakv_budgets({decimal("0.6")}, scores, Counts{2, 2}), (Counts{2, 2})) << "2.4 and 1.6";
}

TEST(AdakvBudgets, OfEqualScoresCountsTheSmallerHeadsFirst) {
  const Matrix scores = matrix({{1, 1, 1}, {1, 1, 1}, {1, 1, 1}});
  EXPECT_EQ(adakv_budgets({decimal("0")}, scores, Counts{2, 1, 1}), (Counts{3, 1, 0}));
}

TEST(AdakvBudgets, OfEqualFractionsFillsUpTheSmallerHeadFirst) {
  // f = (3, 0, 0); with s = 1/2 the shares are 2, 1/2, 1/2.
  const Matrix scores = matrix({{9, 8, 7}, {1, 1, 1}, {1, 1, 1}});
  EXPECT_EQ(adakv_budgets({decimal("0.5")}, scores, Counts{1, 1, 1}), (Counts{2, 1, 0}));
}

TEST(AdakvBudgets, IsExactWhereBinaryFractionsAreNot) {
  // (1 - 0.9) * 10 is 0.99999... in binary: f = (10, 0), k = (0, 10).
  Matrix scores(2, 10);
  for (int64_t i = 0; i < 10; ++i) scores(0, i) = 1;
  EXPECT_EQ(adakv_budgets({decimal("0.9")}, scores, Counts{0, 10}), (Counts{1, 9}));
}

TEST(AdakvBudgets, TakesNoCandidatesAndNothingToKeep) {
  EXPECT_EQ(adakv_budgets({}, Matrix(3, 0), Counts{0, 0, 0}), (Counts{0, 0, 0}));
  EXPECT_EQ(adakv_budgets({}, Matrix(2, 4), Counts{0, 0}), (Counts{0, 0}));
  EXPECT_EQ(adakv_budgets({}, Matrix(2, 4), Counts{4, 4}), (Counts{4, 4}));
  EXPECT_EQ(adakv_budgets({}, matrix({{1, 2}}), Counts{1}), Counts{1});
}

TEST(AdakvBudgets, RefusesWhatDoesNotFit) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { adakv_budgets({}, Matrix(2, 4), Counts{1}); }),
            "budgets of candidates is 1 but rows of scores is 2");
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              adakv_budgets({}, Matrix(2, 4), Counts{5, 0});
            }),
            "a head cannot keep 5 of 4 candidates");
  EXPECT_EQ(message_of<ShapeMismatch>([] { adakv_budgets({}, Matrix(1, 4), Counts{-1}); }),
            "a head cannot keep -1 of 4 candidates");
  Matrix scores(2, 2);
  scores(1, 0) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message_of<NonFinite>([&] { adakv_budgets({}, scores, Counts{1, 1}); }), "scores[2] is NaN");
}

RC_GTEST_PROP(AdakvBudgets, AreWhatTheDefinitionSaysInRationalNumbers, ()) {
  const Heads heads = any_heads();
  const Decimal safeguard = any_safeguard();
  RC_CLASSIFY(total(heads.candidates) == 0, "nothing to share out");
  RC_ASSERT(adakv_budgets({safeguard}, heads.matrix, heads.candidates) ==
            adakv_by_definition(safeguard, heads.scores, heads.candidates));
}

RC_GTEST_PROP(AdakvBudgets, KeepTheTotalAndExceedNoHeadsCandidates, ()) {
  const Heads heads = any_heads();
  const Counts budgets = adakv_budgets({any_safeguard()}, heads.matrix, heads.candidates);
  RC_ASSERT(total(budgets) == total(heads.candidates));
  for (const int64_t budget : budgets) RC_ASSERT(0 <= budget && budget <= heads.matrix.cols());
}

RC_GTEST_PROP(AdakvBudgets, AreUniformIfEverythingIsSafeguarded, ()) {
  const Heads heads = any_heads();
  RC_ASSERT(adakv_budgets({decimal("1")}, heads.matrix, heads.candidates) == heads.candidates);
}

RC_GTEST_PROP(AdakvBudgets, GiveEveryHeadItsSafeguardedShare, ()) {
  const Heads heads = any_heads();
  const Decimal safeguard = any_safeguard();
  const Counts budgets = adakv_budgets({safeguard}, heads.matrix, heads.candidates);
  for (size_t h = 0; h < budgets.size(); ++h) {
    RC_ASSERT(budgets[h] >= floor_of_product(safeguard, heads.candidates[h]));
  }
}

// The height of a pyramid, exactly; its shares are exact if linear, and have 50 digits
// if they follow a cosine.
Rational height(int64_t beta, int64_t budget, int64_t least, int64_t tokens) {
  const Rational wanted = Rational(budget) - Rational(Integer(budget), Integer(beta));
  return std::min({wanted, Rational(budget - least), Rational(tokens - budget)});
}

Counts pyramid_by_definition(const Pyramid& options, int64_t layers, int64_t budget, int64_t least,
                             int64_t tokens) {
  const Rational above = height(options.beta, budget, least, tokens);
  if (layers == 1) return {budget};
  if (options.shape == Decay::linear) {
    std::vector<Rational> shares;
    for (int64_t l = 0; l < layers; ++l) {
      shares.push_back(budget + above * (1 - Rational(Integer(2 * l), Integer(layers - 1))));
    }
    return largest_remainders(shares, layers * budget, floor_of);
  }
  // Rounded to 40 digits, so that equal fractions compare equal.
  const Real unit("1e40");
  std::vector<Real> shares;
  for (int64_t l = 0; l < layers; ++l) {
    const Real angle = boost::math::constants::pi<Real>() * l / (layers - 1);
    shares.push_back(round((budget + static_cast<Real>(above) * cos(angle)) * unit) / unit);
  }
  return largest_remainders(shares, layers * budget, [](const Real& share) { return floor(share); });
}

struct Budgets {
  Pyramid options;
  int64_t layers, budget, least, tokens;

  Counts counts() const { return pyramid_budgets(options, layers, budget, least, tokens); }
};

Budgets any_pyramid() {
  Budgets budgets;
  budgets.tokens = *integer(1, *integer(0, 1) == 0 ? 40 : 40000);
  budgets.budget = *integer(1, budgets.tokens);
  budgets.least = *integer(0, 1) == 0 ? 1 : *integer(1, budgets.budget);
  budgets.layers = *integer(1, 40);
  const int64_t betas[] = {1, 2, *integer(1, 30), *integer(1, INT64_MAX - 1)};
  budgets.options = {betas[*integer(0, 3)], *integer(0, 1) == 0 ? Decay::linear : Decay::cosine};
  return budgets;
}

TEST(PyramidBudgets, FallLinearly) {
  // d = 100 - 100/20 = 95: 195, 100, 5.
  EXPECT_EQ(pyramid_budgets({20, Decay::linear}, 3, 100, 1, 1000), (Counts{195, 100, 5}));
  // 95/3 = 31.67: 195, 131.67, 68.33, 5.
  EXPECT_EQ(pyramid_budgets({20, Decay::linear}, 4, 100, 1, 1000), (Counts{195, 132, 68, 5}));
}

TEST(PyramidBudgets, FallAsACosine) {
  // cos 60 = 1/2: 195, 147.5, 52.5, 5; of equal fractions the first is rounded up.
  EXPECT_EQ(pyramid_budgets({20, Decay::cosine}, 4, 100, 1, 1000), (Counts{195, 148, 52, 5}));
  // 95 / sqrt 2 = 67.18: 195, 167.18, 100, 32.82, 5.
  EXPECT_EQ(pyramid_budgets({20, Decay::cosine}, 5, 100, 1, 1000), (Counts{195, 167, 100, 33, 5}));
}

TEST(PyramidBudgets, OfFractionsThatOnlyRoundingSetsApartFillUpTheSmallerLayerFirst) {
  // d = 6: 6 cos 36 = 4.854 and 6 cos 72 = 1.854 have equal fractions, since cos 36 - cos 72 = 1/2;
  // their opposites have .146.
  EXPECT_EQ(pyramid_budgets({INT64_MAX, Decay::cosine}, 6, 7, 1, 100), (Counts{13, 12, 9, 5, 2, 1}));
  // d = 2: 1.618, 0.618, -0.618, -1.618: the last to be rounded up is the last but one.
  EXPECT_EQ(pyramid_budgets({INT64_MAX, Decay::cosine}, 6, 3, 1, 100), (Counts{5, 5, 4, 2, 1, 1}));
}

TEST(PyramidBudgets, AreCutByTheAlwaysKeptAndByThePrompt) {
  EXPECT_EQ(pyramid_budgets({20, Decay::linear}, 3, 100, 40, 1000), (Counts{160, 100, 40}));
  EXPECT_EQ(pyramid_budgets({20, Decay::linear}, 3, 100, 40, 110), (Counts{110, 100, 90}));
  EXPECT_EQ(pyramid_budgets({20, Decay::linear}, 3, 100, 100, 1000), (Counts{100, 100, 100}));
  EXPECT_EQ(pyramid_budgets({20, Decay::cosine}, 3, 100, 1, 100), (Counts{100, 100, 100}));
}

TEST(PyramidBudgets, OfOneLayerIsTheBudget) {
  EXPECT_EQ(pyramid_budgets({20, Decay::linear}, 1, 7, 1, 9), Counts{7});
  EXPECT_EQ(pyramid_budgets({20, Decay::cosine}, 1, 7, 1, 9), Counts{7});
}

TEST(PyramidBudgets, OfTheLargestPromptsAndBetasAreExact) {
  const int64_t tokens = int64_t{1} << 42;
  for (const Decay shape : {Decay::linear, Decay::cosine}) {
    const Counts budgets = pyramid_budgets({INT64_MAX, shape}, 1 << 10, tokens / 2, 1, tokens);
    EXPECT_EQ(total(budgets), (tokens / 2) << 10);
    EXPECT_EQ(budgets.front(), tokens - 1);
    EXPECT_EQ(budgets.back(), 1);
  }
}

TEST(PyramidBudgets, RefuseWhatHasNoMeaning) {
  const auto refused = [](int64_t beta, int64_t layers, int64_t budget, int64_t least, int64_t tokens) {
    return message_of<ShapeMismatch>([&] {
      pyramid_budgets({beta, Decay::linear}, layers, budget, least, tokens);
    });
  };
  EXPECT_EQ(refused(20, 0, 5, 1, 9), "no pyramid over 0 layers of 9 tokens");
  EXPECT_EQ(refused(20, 2, 5, 1, (int64_t{1} << 42) + 1), "no pyramid over 2 layers of 4398046511105 tokens");
  EXPECT_EQ(refused(20, 2, 10, 1, 9), "a mean budget of 10 entries is outside 1..9");
  EXPECT_EQ(refused(20, 2, 3, 4, 9), "a mean budget of 3 entries is outside 4..9");
  EXPECT_EQ(refused(20, 2, 3, 0, 9), "a mean budget of 3 entries is outside 0..9");
  EXPECT_EQ(message_of<InvalidPolicy>([] {
              pyramid_budgets({0, Decay::linear}, 2, 5, 1, 9);
            }),
            "beta=0 but it must be at least 1");
}

RC_GTEST_PROP(PyramidBudgets, AreWhatTheDefinitionSays, ()) {
  const Budgets budgets = any_pyramid();
  RC_CLASSIFY(budgets.options.shape == Decay::cosine, "cosine");
  RC_CLASSIFY(budgets.counts().front() == budgets.budget, "flat");
  RC_ASSERT(budgets.counts() == pyramid_by_definition(budgets.options, budgets.layers, budgets.budget,
                                                      budgets.least, budgets.tokens));
}

RC_GTEST_PROP(PyramidBudgets, KeepTheTotalNeverRiseAndStayWithinTheirLimits, ()) {
  const Budgets budgets = any_pyramid();
  const Counts counts = budgets.counts();
  RC_ASSERT(total(counts) == budgets.layers * budgets.budget);
  RC_ASSERT(std::ranges::is_sorted(counts, std::ranges::greater()));
  RC_ASSERT(counts.front() <= budgets.tokens);
  RC_ASSERT(counts.back() >= budgets.least);
}

RC_GTEST_PROP(PyramidBudgets, AreUniformForABetaOfOne, ()) {
  Budgets budgets = any_pyramid();
  budgets.options.beta = 1;
  RC_ASSERT(budgets.counts() == Counts(static_cast<size_t>(budgets.layers), budgets.budget));
}

}  // namespace
}  // namespace kvbound::reference::allocation_test
