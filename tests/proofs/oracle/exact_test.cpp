// The definitions on instances computed by hand: the examples of proofs/critical_kv.md.
#include <stdexcept>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/output_change.hpp>

#include "support/random_layer.hpp"

namespace kvbound::exact::exact_test {
namespace {

using test::matrix;
using Positions = std::vector<int64_t>;

Real fraction(int64_t numerator, int64_t denominator) { return Real(numerator) / denominator; }

// numerators / denominator
Reals fractions(std::initializer_list<int64_t> numerators, int64_t denominator) {
  Reals result;
  for (const int64_t numerator : numerators) result.push_back(fraction(numerator, denominator));
  return result;
}

// Values whose projections are these numbers, one each.
std::vector<Reals> numbers(std::initializer_list<int64_t> projected) {
  std::vector<Reals> result;
  for (const int64_t number : projected) result.push_back({Real(number)});
  return result;
}

testing::AssertionResult is(const Real& actual, const Real& expected) {
  if (abs(actual - expected) <= Real("1e-47")) return testing::AssertionSuccess();
  return testing::AssertionFailure() << actual.str(30) << ", expected " << expected.str(30);
}

testing::AssertionResult are(const Reals& actual, const Reals& expected) {
  if (actual.size() != expected.size()) return testing::AssertionFailure() << actual.size() << " numbers";
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!is(actual[i], expected[i])) return is(actual[i], expected[i]) << " at " << i;
  }
  return testing::AssertionSuccess();
}

// ---- softmax, projection, norms

TEST(ExactSoftmax, IsTheShareOfTheExponentials) {
  EXPECT_TRUE(are(softmax(Reals{log(Real(1)), log(Real(2)), log(Real(5))}), fractions({1, 2, 5}, 8)));
  EXPECT_TRUE(are(softmax(Reals{7, 7}), fractions({1, 1}, 2)));
  const std::vector<double> logits{3};
  EXPECT_TRUE(are(softmax(VectorView(logits)), {1}));
}

TEST(ExactSoftmax, NeitherOverflowsNorUnderflows) {
  const Reals weights = softmax(Reals{10000, -10000});
  EXPECT_GT(weights[1], 0);
  EXPECT_TRUE(is(log(weights[1]) / 20000, -1));
}

TEST(ExactProjectedValues, AreTheProduct) {
  const auto projected = projected_values(matrix({{1, -2}, {0, 1}}), matrix({{1, 0}, {2, -2}}));
  ASSERT_EQ(projected.size(), 2u);
  EXPECT_TRUE(are(projected[0], {-3, 4}));
  EXPECT_TRUE(are(projected[1], {2, -2}));
  EXPECT_TRUE(are(norms(projected, Norm::l1), {7, 4}));
  EXPECT_TRUE(are(norms(projected, Norm::l2), {5, sqrt(Real(8))}));
  EXPECT_TRUE(are(norms(projected, Norm::l_infinity), {4, 2}));
}

TEST(ExactTotal, IsOverTheChosenOrTheOthers) {
  const Reals numbers{1, 2, 4, 8};
  EXPECT_EQ(oracle::sum(numbers), 15);
  EXPECT_EQ(oracle::sum(oracle::at(numbers, Positions{0, 3})), 9);
  EXPECT_EQ(oracle::sum(oracle::outside(numbers, Positions{0, 3})), 6);
  EXPECT_EQ(oracle::sum(oracle::at(numbers, Positions{})), 0);
  EXPECT_EQ(oracle::sum(oracle::outside(numbers, Positions{})), 15);
  EXPECT_EQ(product(numbers, {1, 3, 0, 2}), (Reals{1, 6, 0, 16}));
}

TEST(ExactNorms, AreOfAbsoluteValues) {
  EXPECT_TRUE(
      are({norm({-5, 3}, Norm::l1), norm({-3, 4}, Norm::l2), norm({-5, 3}, Norm::l_infinity)}, {8, 5, 5}));
}

TEST(ExactQuery, KeepsTheDigitsOfWhatOneEntryLeaves) {
  const Query query({0, 200, 0}, {{1}, {-3}, {2}});
  EXPECT_LT(abs(query.rest(1) / (2 * exp(Real(-200))) - 1), Real("1e-45"));
  EXPECT_EQ(query.size, 3) << "the largest absolute value";
}

TEST(Measured, AddsUpAbsoluteTerms) {
  oracle::Measured sum(Real(3));
  sum += oracle::Measured(Real(-5)) * oracle::Measured(Real(2));
  EXPECT_EQ(sum.value, -7);
  EXPECT_EQ(sum.terms, 13);
}

// ---- what eviction does

struct Change {
  Reals attention;
  std::vector<Reals> projected;
  Positions kept;
  Real perturbation;  // L in L1
  Real bound;         // theta in L1
};

// proofs/critical_kv.md: the equality of ckv-3.3, its counterexample, and those of ckv-window
std::vector<Change> changes() {
  return {{fractions({1, 1}, 2), numbers({1, -1}), {1}, 1, 1},
          {fractions({1, 1}, 2), {{1, 1}, {-1, -1}}, {1}, 2, 2},
          {fractions({7, 1, 4, 4}, 16), numbers({-1, -1, 1, 1}), {0, 1}, 1, 1},
          {fractions({7, 1}, 8), numbers({-1, 1}), {0}, fraction(1, 4), fraction(1, 4)},
          // L = |1/4 (1 - 3)| where theta = 1/4 3 + 1/3 3/4 1
          {fractions({3, 1}, 4), numbers({1, 3}), {0}, fraction(1, 2), 1},
          // all are kept: the output does not change
          {fractions({3, 1}, 4), numbers({1, 3}), {0, 1}, 0, 0}};
}

TEST(ExactOutputChange, IsWhatEvictionDoes) {
  for (const Change& change : changes()) {
    EXPECT_TRUE(is(norm(output_change(change.attention, change.projected, change.kept), Norm::l1),
                   change.perturbation));
    EXPECT_TRUE(is(norm(stable_output_change(change.attention, change.projected, change.kept), Norm::l1),
                   change.perturbation));
  }
}

TEST(ExactOutputChange, HasItsSign) {
  // o = 3/4 - 3/4 = 0 and o^ = 1
  const Reals attention = fractions({3, 1}, 4);
  EXPECT_TRUE(are(output_change(attention, numbers({1, -3}), Positions{0}), {-1}));
  EXPECT_TRUE(are(stable_output_change(attention, numbers({1, -3}), Positions{0}), {-1}));
}

// The closed forms, against the outputs of two caches; entry 2 has nearly all of the weight.
TEST(ExactChangeVector, IsTheDifferenceOfTwoOutputs) {
  const Query query({0, 1, 50, -3}, {{1, -2}, {4, 0}, {-1, 5}, {2, 2}});
  for (int64_t p = 0; p < 4; ++p) {
    EXPECT_TRUE(are(change_vector(reference::Change::exact, query, p),
                    difference(query.output, without(query, Positions{p}).output)));
    const Query zeroed = shrunk(query, p, 1, 1);  // logit and value 0
    EXPECT_TRUE(
        are(change_vector(reference::Change::slot, query, p), difference(query.output, zeroed.output)));
  }
}

TEST(ExactPerturbationBound, IsTheta) {
  for (const Change& change : changes()) {
    const Reals lengths = norms(change.projected, Norm::l1);
    EXPECT_TRUE(
        is(oracle::perturbation_bound_as_printed(change.attention, lengths, change.kept), change.bound));
    EXPECT_TRUE(is(oracle::perturbation_bound(change.attention, lengths, change.kept), change.bound));
  }
}

TEST(ExactPerturbationBound, IsThatOfTheSweepsCounterexample) {
  const Reals attention = fractions({4, 3, 1, 8}, 16), lengths{1, 4, 29, 1};
  const Real expected[] = {fraction(45, 16), fraction(463, 176), fraction(403, 144)};
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(is(oracle::perturbation_bound_as_printed(attention, lengths, Positions{i, 3}), expected[i]));
    EXPECT_TRUE(is(oracle::perturbation_bound(attention, lengths, Positions{i, 3}), expected[i]));
  }
}

// ---- two stages

struct TwoStages {
  Reals attention;
  Reals norms;
  Positions stage_one;
  Positions kept;
  Real bound;  // theta^
  Real only;   // theta^_relax
};

// proofs/critical_kv.md: ckv-3.5, ckv-epsilon, ckv-e.1, ckv-adaptive-alpha
std::vector<TwoStages> two_stages() {
  const Reals small = fractions({2, 2, 2, 1, 1}, 8), small_norms{1, 2, 1, 1, 1};
  const Reals half = fractions({5, 5, 2, 2, 2}, 16), half_norms{1, 1, 1, 4, 4};
  return {{small, small_norms, {0}, {0, 1}, fraction(11, 4), fraction(9, 4)},
          {small, small_norms, {0}, {0, 3}, 2, 2},
          {fractions({3, 1}, 4), {1, 1}, {0}, {0}, fraction(1, 2), fraction(1, 2)},
          {fractions({3, 0, 1}, 4), {1, 1, 1}, {0}, {0, 1}, fraction(1, 2), fraction(1, 2)},
          {fractions({2, 1, 1}, 4), {0, 0, 1}, {0}, {0, 1}, fraction(1, 4), fraction(1, 4)},
          // c = 2/3, C' = 17/16 - 1/2: theta^_relax = 9/16 - 2/3 1/16 and 9/16 - 2/3 3/16
          {fractions({12, 3, 1}, 16), {1, 1, 2}, {0}, {0, 2}, fraction(23, 48), fraction(25, 48)},
          {fractions({12, 3, 1}, 16), {1, 1, 2}, {0}, {0, 1}, fraction(7, 16), fraction(7, 16)},
          // M = 1, c = -6/5, C' = 17/8 - ...: theta^_relax = C' + 6/5 (mass of stage two)
          {half, half_norms, {0}, {0, 3, 4}, fraction(133, 40), fraction(97, 40)},
          {half, half_norms, {0}, {0, 1, 2}, fraction(53, 20), fraction(53, 20)},
          {half, half_norms, {0, 1}, {0, 1, 3}, fraction(13, 10), fraction(29, 20)},
          {half, half_norms, {0, 1}, {0, 1, 2}, fraction(29, 20), fraction(29, 20)}};
}

TEST(ExactStageTwoBound, IsThetaHat) {
  for (const TwoStages& some : two_stages()) {
    EXPECT_TRUE(is(oracle::stage_two_bound_as_printed(some.attention, some.norms, some.stage_one, some.kept),
                   some.bound));
    EXPECT_TRUE(
        is(oracle::stage_two_bound(some.attention, some.norms, some.stage_one, some.kept), some.bound));
  }
}

TEST(ExactAttentionOnlyBound, IsThetaHatRelaxed) {
  for (const TwoStages& some : two_stages()) {
    EXPECT_TRUE(
        is(oracle::attention_only_bound_as_printed(some.attention, some.norms, some.stage_one, some.kept),
           some.only));
    EXPECT_TRUE(
        is(oracle::attention_only_bound(some.attention, some.norms, some.stage_one, some.kept), some.only));
  }
}

// ---- choices

TEST(WithBest, AddsTheBestOthersAscending) {
  const Reals scores{1, 5, 2, 4, 3};
  EXPECT_EQ(with_best(scores, {}, 2), (Positions{1, 3}));
  EXPECT_EQ(with_best(scores, Positions{1}, 2), (Positions{1, 3, 4}));
  EXPECT_EQ(with_best(scores, Positions{0, 2}, 0), (Positions{0, 2}));
  EXPECT_EQ(with_best(scores, Positions{0, 2}, 3), (Positions{0, 1, 2, 3, 4}));
}

TEST(WithBest, LetsTheSmallerIndexWinTies) {
  EXPECT_EQ(with_best({1, 1, 1, 1}, {}, 2), (Positions{0, 1}));
  EXPECT_EQ(with_best({1, 2, 1, 2, 1}, {}, 3), (Positions{0, 1, 3}));
  EXPECT_EQ(with_best({1, 1, 1, 1}, Positions{0}, 2), (Positions{0, 1, 2}));
}

TEST(OverAllChoices, SeesEveryChoiceOnce) {
  std::vector<Positions> seen;
  over_all_choices(5, Positions{1, 3}, 2, [&](Indices kept) {
    seen.emplace_back(kept.begin(), kept.end());
    return Real(0);
  });
  std::ranges::sort(seen);
  EXPECT_EQ(seen, (std::vector<Positions>{{0, 1, 2, 3}, {0, 1, 3, 4}, {1, 2, 3, 4}}));
}

TEST(OverAllChoices, TellsTheSmallestAndTheLargest) {
  const Reals scores{3, -1, 4, 1, 5};
  const auto sum = [&](Indices kept) { return oracle::sum(oracle::at(scores, kept)); };
  const Extremes two = over_all_choices(5, {}, 2, sum);
  EXPECT_EQ(two.smallest, 0);
  EXPECT_EQ(two.largest, 9);
  const Extremes highest =
      over_all_choices(5, Positions{0, 2}, 1, [&](Indices kept) { return Real(-sum(kept)); });
  EXPECT_EQ(highest.largest, -6);
  const Extremes with_two = over_all_choices(5, Positions{2}, 1, sum);
  EXPECT_EQ(with_two.smallest, 3);
  EXPECT_EQ(with_two.largest, 9);
}

TEST(OverAllChoices, RefusesMoreThanCanBeLookedAt) {
  const auto none = [](Indices) -> Real { throw std::runtime_error("a choice is looked at"); };
  EXPECT_THROW(over_all_choices(40, {}, 20, none), std::length_error);
  EXPECT_THROW(over_all_choices(21, Positions{20}, 10, none), std::runtime_error) << "184756 choices";
}

TEST(OverAllChoices, KnowsOneChoiceOfNothingAndOfEverything) {
  const Reals scores{3, -1, 4};
  int64_t choices = 0;
  const auto sum = [&](Indices kept) {
    ++choices;
    return oracle::sum(oracle::at(scores, kept));
  };
  EXPECT_EQ(over_all_choices(3, Positions{1}, 0, sum).largest, -1);
  EXPECT_EQ(over_all_choices(3, {}, 3, sum).smallest, 6);
  EXPECT_EQ(choices, 2);
}

}  // namespace
}  // namespace kvbound::exact::exact_test
