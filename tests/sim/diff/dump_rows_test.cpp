#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/sim/diff/dump_rows.hpp>

namespace kvbound::sim::dump_rows_test {
namespace {

using Numbers = std::vector<double>;
using Positions = std::vector<int64_t>;
using enum RowVerdict;

constexpr LayerShape kShape{4, 2, 2, 3};  // 4 query heads, 2 KV heads, head_dim 2

// The judgement of a tensor all of whose elements are within bounds that tell them from others.
TensorAgreement right(const std::string& tensor, int64_t elements) {
  TensorAgreement found;
  found.tensor = tensor;
  found.elements = found.judged = elements;
  return found;
}

// One side that claims an output [steps, 4, 2], each head of which has its number twice.
JudgedClaims with_output(const Numbers& heads, Dtype storage = Dtype::f32) {
  JudgedClaims side;
  side.steps = std::ssize(heads) / 4;
  side.accumulate = Dtype::f32;
  side.claims.output = RealClaim{{side.steps, 4, 2}, {}, storage};
  for (const double number : heads) {
    side.claims.output->numbers.insert(side.claims.output->numbers.end(), {number, number});
  }
  side.judged.tensors = {right("output", side.steps * 8)};
  side.judged.choices = {{{0}, {0}}, {{}, {}}, std::vector<FollowedStep>(side.steps)};
  return side;
}

TensorAgreement& found(JudgedClaims& side) { return side.judged.tensors.front(); }

TensorRows compared(const JudgedClaims& a, const JudgedClaims& b) {
  const LayerRows rows = compare_layer_rows(kShape, a, b);
  if (rows.tensors.size() != 1) throw std::runtime_error(std::to_string(rows.tensors.size()) + " tensors");
  return rows.tensors.front();
}

// Every row's verdict.
std::vector<RowVerdict> verdicts(const TensorRows& rows) {
  std::vector<RowVerdict> all(rows.rows(), identical);
  for (const DifferingRow& row : rows.differing) all[row.row] = row.verdict;
  for (const RowVerdict verdict : kRowVerdicts) {
    EXPECT_EQ(rows.count(verdict), std::ranges::count(all, verdict)) << word(verdict);
  }
  return all;
}
std::vector<RowVerdict> verdicts(const JudgedClaims& a, const JudgedClaims& b) {
  return verdicts(compared(a, b));
}

using Verdicts = std::vector<RowVerdict>;

TEST(Rows, AreIdenticalToTheLastBitOrReordered) {
  const JudgedClaims a = with_output({1, 2, 3, 4});
  EXPECT_EQ(verdicts(a, a), Verdicts(4, identical));
  JudgedClaims b = a;
  b.claims.output->numbers[5] = std::nextafter(3.0, 4.0);
  EXPECT_EQ(verdicts(a, b), (Verdicts{identical, identical, reordered, identical}));
  const JudgedClaims zeros = with_output({0, 0, 0, 0}), negative = with_output({0, -0.0, 0, 0});
  EXPECT_EQ(verdicts(zeros, negative), (Verdicts{identical, reordered, identical, identical}));
}

TEST(Rows, AreWrongWhereOneOrBothAreOutsideWhateverTheirBits) {
  JudgedClaims a = with_output({1, 2, 3, 4}), b = with_output({1, 2, 5, 4});
  found(a).outside_at = {0, 3};
  found(b).outside_at = {2, 3, 6};
  EXPECT_EQ(verdicts(a, b), (Verdicts{wrong_a, both_wrong, reordered, wrong_b}));
}

TEST(Rows, AreWrongWhereOneIsOutsideAsAWhole) {
  JudgedClaims a = with_output({1, 2, 3, 4}), b = a;
  found(b).functionals = {FunctionalAgreement{"gain"}, FunctionalAgreement{"difference"}};
  found(b).functionals[1].outside_at = {6};
  EXPECT_EQ(verdicts(a, b), (Verdicts{identical, identical, identical, wrong_b}));
}

TEST(Rows, AreUndecidedWhereOneIsAndTheirBitsDiffer) {
  JudgedClaims a = with_output({1, 2, 3, 4}), b = with_output({1, 5, 5, 5});
  found(a).undecided_at = {0, 2};
  found(b).undecided_at = {4, 7};
  found(b).outside_at = {7};
  EXPECT_EQ(verdicts(a, b), (Verdicts{identical, undecided, undecided, wrong_b}));
}

TEST(Rows, AreUndecidedWhereNoBoundOfTheTensorTellsAnything) {
  JudgedClaims a = with_output({1, 2, 3, 4}), b = with_output({1, 2, 3, 5});
  found(b).judged = 0;
  EXPECT_EQ(verdicts(a, b), (Verdicts{identical, identical, identical, undecided}));
  EXPECT_EQ(verdicts(b, a).back(), undecided);
  found(b).functionals = {FunctionalAgreement{"gain"}};
  found(b).functionals[0].judged = 1;
  EXPECT_EQ(verdicts(a, b).back(), reordered) << "its gain is judged";
  found(b).functionals = {};
  found(b).all_zero = true;
  EXPECT_EQ(verdicts(a, b).back(), reordered) << "zeros are right";
}

TEST(Rows, AreUndecidedWhereNoBoundOfTheRowTellsAnything) {
  JudgedClaims a = with_output({1, 2, 3, 4}), b = with_output({5, 5, 5, 5});
  found(b).decidable = {false, true, false, false, true, true, false, false};
  EXPECT_EQ(verdicts(a, b), (Verdicts{reordered, undecided, reordered, undecided}));
  found(b).functionals = {FunctionalAgreement{"gain"}};
  found(b).functionals[0].judged_at = {6};
  EXPECT_EQ(verdicts(b, a), (Verdicts{reordered, undecided, reordered, reordered})) << "a gain is judged";
}

TEST(Rows, OfADerivedTensorNeedNoEvidence) {
  JudgedClaims a, b;
  for (JudgedClaims* side : {&a, &b}) {
    side->steps = 1;
    side->claims.layer_perturbation = RealClaim{{1}, {side == &a ? 1.0 : 2.0}, Dtype::f64};
    side->judged = {{right("layer_perturbation", 1)}, {{{0}, {0}}, {}, std::vector<FollowedStep>(1)}};
    side->judged.tensors[0].judged = 0;
  }
  EXPECT_EQ(verdicts(a, b), Verdicts{reordered});
}

TEST(Rows, OfDifferentCachesAreNotCalledReordered) {
  JudgedClaims a = with_output({1, 2, 3, 4, 1, 2, 3, 4}), b = with_output({9, 9, 9, 4, 9, 9, 9, 9});
  for (JudgedClaims* side : {&a, &b}) {
    for (FollowedStep& step : side->judged.choices.steps) step.evicted = {7, 7};
  }
  b.judged.choices.steps[0].evicted = {7, 8};
  found(b).outside_at = {12};
  const LayerRows rows = compare_layer_rows(kShape, a, b);
  EXPECT_EQ(verdicts(rows.tensors.front()), (Verdicts{reordered, reordered, reordered, identical, reordered,
                                                      reordered, wrong_b, other_cache}));
  ASSERT_EQ(rows.apart.size(), 1U);
  EXPECT_EQ(rows.apart[0].kv_head, 1);
  EXPECT_EQ(rows.apart[0].first_step, 1);
}

TEST(Rows, AreComparedOverTheStepsThatBothHave) {
  const JudgedClaims a = with_output({1, 2, 3, 4}), b = with_output({1, 2, 3, 5, 1, 2, 3, 4});
  for (const TensorRows& rows : {compared(a, b), compared(b, a)}) {
    EXPECT_EQ(rows.rows(), 4);
    EXPECT_EQ(verdicts(rows), (Verdicts{identical, identical, identical, reordered}));
  }
}

TEST(Rows, AreNoneWithoutStepsOrACommonTensor) {
  EXPECT_EQ(compared(with_output({}), with_output({1, 2, 3, 4})).rows(), 0);
  JudgedClaims a = with_output({1, 2, 3, 4}), b = a;
  b.claims.output.reset();
  EXPECT_TRUE(compare_layer_rows(kShape, a, b).tensors.empty());
}

TEST(Distances, AreInUlpsOfTheLargerElementAndOfTheRowsLargest) {
  JudgedClaims a = with_output({1, 2, 4, 8}), b = a;
  b.claims.output->numbers[0] = 1 + 0x1p-23;
  b.claims.output->numbers[1] = 1 + 3 * 0x1p-23;
  a.claims.output->numbers[4] = 0x1p-20;  // beside 4 in the same row
  b.claims.output->numbers[4] = -0x1p-20;
  const TensorRows rows = compared(a, b);
  ASSERT_EQ(rows.differing.size(), 2U);
  EXPECT_EQ(rows.differing[0].ulps, 3);
  EXPECT_EQ(rows.differing[0].row_ulps, 3);
  EXPECT_EQ(rows.differing[1].ulps, 0x1p24) << "2^-19 in units of 2^-43";
  EXPECT_EQ(rows.differing[1].row_ulps, 4) << "2^-19 in units of 2^-21";
  ASSERT_TRUE(rows.distances);
  EXPECT_EQ(rows.distances->unit, Dtype::f32);
  EXPECT_EQ(rows.distances->farthest.index, (Positions{0, 2, 0}));
  EXPECT_EQ(rows.distances->farthest.a, 0x1p-20);
  EXPECT_EQ(rows.distances->farthest.b, -0x1p-20);
  EXPECT_EQ(rows.distances->farthest.ulps, 0x1p24);
  EXPECT_EQ(rows.distances->row_ulps, 4);
}

TEST(Distances, AreInUnitsOfTheLargerElementWhicheverDumpHasIt) {
  const JudgedClaims small = with_output({1, 1, 1, 1}), large = with_output({1, 1, 1, 4});
  for (const TensorRows& rows : {compared(small, large), compared(large, small)}) {
    EXPECT_EQ(rows.distances.value().farthest.ulps, 3 * 0x1p21);
    EXPECT_EQ(rows.distances->row_ulps, 3 * 0x1p21);
  }
}

TEST(Distances, AreInUnitsOfTheCoarsestType) {
  const auto ulps = [](Dtype of_a, Dtype of_b, Dtype accumulate) {
    JudgedClaims a = with_output({1, 2, 4, 8}, of_a), b = with_output({1.5, 2, 4, 8}, of_b);
    a.accumulate = accumulate;
    b.accumulate = Dtype::f64;
    const TensorRows rows = compared(a, b);
    return std::pair(rows.distances.value().unit, rows.distances->farthest.ulps);
  };
  EXPECT_EQ(ulps(Dtype::f64, Dtype::f64, Dtype::f64), std::pair(Dtype::f64, 0x1p51));
  EXPECT_EQ(ulps(Dtype::f64, Dtype::f64, Dtype::f32), std::pair(Dtype::f32, 0x1p22));
  EXPECT_EQ(ulps(Dtype::f64, Dtype::f16, Dtype::f32), std::pair(Dtype::f16, 0x1p9));
  EXPECT_EQ(ulps(Dtype::bf16, Dtype::f16, Dtype::f32), std::pair(Dtype::bf16, 0x1p6));
}

TEST(Distances, AreOfReorderedRowsAlone) {
  JudgedClaims a = with_output({1, 2, 4, 8}), b = with_output({2, 2, 4, 8});
  found(b).outside_at = {0};
  EXPECT_FALSE(compared(a, b).distances);
  EXPECT_FALSE(compared(a, b).differing[0].ulps);
}

TEST(Distances, OfInfinityAreInfiniteAndOfEqualInfinitiesZero) {
  JudgedClaims a = with_output({1, 2, 4, kInfinity}), b = with_output({1, 2, 4, 8});
  EXPECT_EQ(compared(a, b).distances.value().farthest.ulps, kInfinity);
  b = a;
  a.claims.output->numbers[6] = 8;
  b.claims.output->numbers[6] = std::nextafter(8.0F, 9.0F);
  EXPECT_EQ(compared(a, b).differing[0].ulps, 1);
  EXPECT_EQ(compared(a, b).distances.value().farthest.ulps, 1) << "the equal infinities behind it count as 0";
}

// A side that claims one tensor, all of whose choices are these.
JudgedClaims side_of(const std::string& tensor, LayerClaims claims, FollowedChoices choices, int64_t steps) {
  return {std::move(claims), {{right(tensor, 1)}, std::move(choices)}, steps, Dtype::f64};
}

TEST(Rows, OfKeptEntriesAreThoseOfAKvHead) {
  LayerClaims claims;
  claims.kept = {{1, 2, 3}, {4, 5}};
  const JudgedClaims a = side_of("kept", claims, {*claims.kept, {}, {}}, 0);
  JudgedClaims b = a;
  (*b.claims.kept)[0] = {1, 2};
  EXPECT_EQ(verdicts(a, b), (Verdicts{reordered, identical})) << "and not shifted by the shorter one";
  found(b).outside_at = {2};
  EXPECT_EQ(verdicts(a, b), (Verdicts{reordered, wrong_b}));
  found(b).outside_at = {};
  (*b.claims.kept)[0] = {};
  EXPECT_EQ(verdicts(a, b), (Verdicts{wrong_b, identical})) << "an empty set has no element to name";
  EXPECT_FALSE(compared(a, b).distances) << "positions have no ulps";
}

TEST(Rows, OfMergedEntriesAreThoseOfAKvHead) {
  LayerClaims claims;
  claims.merged_key = RealClaim{{3, 2}, {1, 2, 3, 4, 5, 6}, Dtype::f64};
  const FollowedChoices choices{{{1, 2}, {7}}, {{1, 1, 2}, {7, 7, 7}}, {}};
  const JudgedClaims a = side_of("merged_key", claims, choices, 0);
  JudgedClaims b = a;
  b.claims.merged_key->numbers = {1, 2, 3, 5, 5, 7};
  EXPECT_EQ(verdicts(a, b), (Verdicts{reordered, reordered}));
  EXPECT_EQ(compared(a, b).distances.value().farthest.index, (Positions{1, 1}));
  found(b).outside_at = {3};
  EXPECT_EQ(verdicts(a, b), (Verdicts{wrong_b, reordered}));
  found(b).outside_at = {4};
  EXPECT_EQ(verdicts(a, b), (Verdicts{reordered, wrong_b}));
  found(b).outside_at = {};
  b.judged.choices.target_of[1] = {-1, 7, 7};
  EXPECT_EQ(verdicts(a, b), (Verdicts{reordered, other_cache}));
}

FollowedChoices rebuilding() {
  FollowedChoices choices{{{0}, {0}}, {{0}, {0}}, std::vector<FollowedStep>(3)};
  for (const size_t t : {size_t{1}, size_t{2}}) {
    choices.steps[t].kept = {{1, 2}, {3}};
    choices.steps[t].target_of = {{1, 1, 2}, {3, 3, 3}};
    choices.steps[t].rebuilt_rows = {2, 1};
  }
  return choices;
}

TEST(Rows, OfRebuiltCachesAreThoseOfARebuildAndAKvHead) {
  LayerClaims claims;
  claims.rebuilt_votes = RealClaim{{6}, {2, 1, 3, 2, 1, 3}, Dtype::f64};
  const JudgedClaims a = side_of("rebuilt_votes", claims, rebuilding(), 3);
  JudgedClaims b = a;
  b.claims.rebuilt_votes->numbers = {2, 1, 4, 2, 2, 3};
  EXPECT_EQ(compared(a, b).extents, (Positions{2, 2}));
  EXPECT_EQ(verdicts(a, b), (Verdicts{identical, reordered, reordered, identical}));
  b.judged.choices.steps[2].target_of[0] = {2, 1, 2};
  EXPECT_EQ(verdicts(a, b), (Verdicts{identical, reordered, other_cache, identical}));
  found(b).undecided_at = {2};
  EXPECT_EQ(verdicts(a, b), (Verdicts{identical, undecided, other_cache, identical}));
}

TEST(Rows, OfAWrongNumberOfRebuiltEntriesAreUndecided) {
  LayerClaims claims;
  claims.rebuilt_votes = RealClaim{{6}, {2, 1, 3, 2, 1, 3}, Dtype::f64};
  const JudgedClaims a = side_of("rebuilt_votes", claims, rebuilding(), 3);
  for (const size_t count : {size_t{1}, size_t{9}}) {
    JudgedClaims b = a;
    b.claims.rebuilt_votes = RealClaim{{static_cast<int64_t>(count)}, Numbers(count, 8), Dtype::f64};
    found(b).judged = 0;
    EXPECT_EQ(verdicts(a, b), Verdicts(4, undecided));
  }
  JudgedClaims none = a;  // no rebuild, but rows of one
  none.judged.choices.steps.clear();
  found(none).undecided_at = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(compared(a, none).rows(), 0);
}

// Tokens that are still to come in the shorter of two dumps are no part of the comparison.
TEST(Rows, OfRebuiltTargetsEndWithTheShorterDumpsTokens) {
  LayerClaims claims;
  claims.rebuilt_target_of = {1, 1, 2, -2, 2, 2, 2, -2, 1, 1, 2, 3, 2, 2, 2, 3};
  const JudgedClaims a = side_of("rebuilt_target_of", claims, rebuilding(), 3);
  claims.rebuilt_target_of = {1, 1, 2, 2, 2, 1};
  FollowedChoices shorter = rebuilding();
  shorter.steps.resize(2);
  const JudgedClaims b = side_of("rebuilt_target_of", claims, shorter, 2);
  EXPECT_EQ(verdicts(a, b), (Verdicts{identical, reordered}));
  EXPECT_EQ(verdicts(b, a), (Verdicts{identical, reordered}));
}

TEST(Rows, OfOffsetsAndPositionsAreOneWithoutAnIndex) {
  LayerClaims claims;
  claims.kept_offsets = {0, 3, 5};
  const JudgedClaims a = side_of("kept_offsets", claims, {{{}, {}}, {}, {}}, 0);
  JudgedClaims b = a;
  b.claims.kept_offsets = {0, 2, 5};
  EXPECT_TRUE(compared(a, b).extents.empty());
  EXPECT_EQ(verdicts(a, b), Verdicts{reordered});
}

// Which of two steps and two KV heads are of other caches where head 1 evicts, or
// merges, differently at step 0.
Verdicts with_different_choice(const std::string& tensor, LayerClaims a, LayerClaims b, bool merges,
                               std::vector<int64_t> FollowedStep::*choice) {
  FollowedChoices same{{{1, 2}, {1, 2}}, {{}, {}}, std::vector<FollowedStep>(2)};
  for (FollowedStep& step : same.steps) {
    step.evicted = {1, 1};
    if (merges) step.merged_into = {2, 2};
  }
  FollowedChoices other = same;
  (other.steps[0].*choice)[1] = 0;
  return verdicts(side_of(tensor, std::move(a), same, 2), side_of(tensor, std::move(b), other, 2));
}

TEST(Rows, OfStepsAreOfOtherCachesFromTheChoiceOnThatTheyFollow) {
  const auto integers = [](int64_t number) { return Positions(4, number); };
  LayerClaims a, b;
  a.evicted = integers(1);
  b.evicted = integers(2);
  EXPECT_EQ(with_different_choice("evicted", a, b, false, &FollowedStep::evicted),
            (Verdicts{reordered, reordered, reordered, other_cache}));
  a = b = {};
  a.merged_into = integers(1);
  b.merged_into = integers(2);
  EXPECT_EQ(with_different_choice("merged_into", a, b, true, &FollowedStep::evicted),
            (Verdicts{reordered, other_cache, reordered, other_cache}));
  EXPECT_EQ(with_different_choice("merged_into", a, b, true, &FollowedStep::merged_into),
            (Verdicts{reordered, reordered, reordered, other_cache}));
  a = b = {};
  a.step_votes = RealClaim{{2, 2}, Numbers(4, 1), Dtype::f64};
  b.step_votes = RealClaim{{2, 2}, Numbers(4, 2), Dtype::f64};
  EXPECT_EQ(with_different_choice("step_votes", a, b, true, &FollowedStep::merged_into),
            (Verdicts{reordered, other_cache, reordered, other_cache}));
  a = b = {};
  a.layer_perturbation = RealClaim{{2}, {1, 1}, Dtype::f64};
  b.layer_perturbation = RealClaim{{2}, {2, 2}, Dtype::f64};
  EXPECT_EQ(with_different_choice("layer_perturbation", a, b, false, &FollowedStep::evicted),
            (Verdicts{reordered, other_cache}))
      << "of all KV heads";
}

TEST(Rows, OfEvictionsFollowTheWholeHistory) {
  FollowedChoices one{{{1, 2}, {1, 2}}, {{}, {}}, std::vector<FollowedStep>(3)}, other = one;
  for (size_t t = 0; t < 3; ++t) {
    one.steps[t].evicted = {Positions{1, 2, -1}[t], -1};
    other.steps[t].evicted = {Positions{2, 1, -1}[t], -1};  // the same entries remain
  }
  LayerClaims a, b;
  a.evicted = Positions(6, 7);
  b.evicted = Positions(6, 8);
  EXPECT_EQ(verdicts(side_of("evicted", a, one, 3), side_of("evicted", b, other, 3)),
            (Verdicts{reordered, reordered, other_cache, reordered, other_cache, reordered}));
  a = b = {};
  a.kept_mass = RealClaim{{3, 4}, Numbers(12, 1), Dtype::f64};
  b.kept_mass = RealClaim{{3, 4}, Numbers(12, 2), Dtype::f64};
  const Verdicts masses = verdicts(side_of("kept_mass", a, one, 3), side_of("kept_mass", b, other, 3));
  EXPECT_EQ(Verdicts(masses.begin() + 8, masses.end()), Verdicts(4, reordered))
      << "the cache is the same again";
  EXPECT_EQ(masses[5], other_cache);
}

TEST(Rows, OfTheFullCacheAreNeverOfAnother) {
  LayerClaims a, b;
  a.score = RealClaim{{2, 3}, Numbers(6, 1), Dtype::f64};
  b.score = RealClaim{{2, 3}, Numbers(6, 2), Dtype::f64};
  EXPECT_EQ(
      verdicts(side_of("score", a, {{{1}, {1}}, {}, {}}, 0), side_of("score", b, {{{2}, {2}}, {}, {}}, 0)),
      Verdicts(2, reordered));
  a = b = {};
  a.target_of = {0, 0, 0, 1, 1, 1};
  b.target_of = {1, 1, 1, 2, 2, 2};
  EXPECT_EQ(verdicts(side_of("target_of", a, {{{1}, {1}}, {}, {}}, 0),
                     side_of("target_of", b, {{{1}, {2}}, {}, {}}, 0)),
            (Verdicts{reordered, other_cache}))
      << "targets are chosen among what is kept";
}

}  // namespace
}  // namespace kvbound::sim::dump_rows_test
