#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/diff/judge/whole_rows.hpp>

#include "support/merging_cases.hpp"
#include "support/random_layer.hpp"
#include "support/replay_case.hpp"

namespace kvbound::sim::whole_rows_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Numbers = std::vector<double>;

// Two rows of four numbers, each within 10 % of itself.
struct Case {
  Numbers expected{1, 2, 3, 4, 5, 6, 7, 8}, bounds{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8};
  RealClaim claim{{2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}};
  std::vector<bool> certain = {};
  std::vector<Numbers> savings = {{}, {}};

  TensorAgreement judged() const {
    TensorAgreement agreement = certain.empty()
                                    ? compare("score", claim, expected, bounds)
                                    : compare_uncertain("score", claim, expected, bounds, certain);
    std::vector<WholeRow> rows = rows_of(claim);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].savings = savings[i];
    judge_rows({claim, expected, bounds, certain}, rows, "scores", agreement);
    return agreement;
  }
  void scale(double factor, size_t first = 0, size_t count = 8) {
    for (size_t i = first; i < first + count; ++i) claim.numbers[i] = factor * expected[i];
  }
};

std::string fault_of(const TensorAgreement& agreement) {
  return agreement.diagnosis ? agreement.diagnosis->fault : "";
}

TEST(WholeRows, HaveAGainWithinTheBoundsOfTheirElements) {
  Case given;
  given.scale(1.05, 4, 4);
  const TensorAgreement found = given.judged();
  ASSERT_EQ(found.functionals.size(), 2u);
  const FunctionalAgreement& gain = found.functionals[0];
  EXPECT_EQ(gain.name, "gain");
  EXPECT_EQ(gain.rows, 2);
  EXPECT_EQ(gain.outside, 0);
  EXPECT_EQ(gain.judged_at, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(gain.worst_at, std::vector<int64_t>{1});
  EXPECT_NEAR(gain.worst.value, 1.05, 1e-12);
  EXPECT_NEAR(gain.worst.band, 0.1, 1e-12);
  EXPECT_NEAR(gain.all.value, 1 + 0.05 * 174 / 204, 1e-12);
  EXPECT_NEAR(gain.all.band, 0.1, 1e-12);
  EXPECT_EQ(found.functionals[1].name, "difference");
  EXPECT_NEAR(found.functionals[1].worst.value, 0.05, 1e-12);
  EXPECT_TRUE(found.agrees());
  EXPECT_FALSE(found.diagnosis);
}

TEST(WholeRows, AreSaidToBeOffByAFactorThatExplainsThem) {
  Case given;
  given.scale(0.5);
  const TensorAgreement both = given.judged();
  EXPECT_EQ(both.functionals[0].outside_at, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(fault_of(both), "scores are 0.500 of what they should be");
  EXPECT_EQ(both.diagnosis->rows, 2);
  given.scale(1, 0, 4);
  EXPECT_EQ(given.judged().diagnosis->rows, 1) << "the row that differs";
  given.scale(0);
  EXPECT_EQ(fault_of(given.judged()), "rows are zero");
}

TEST(WholeRows, AreNotSaidToBeOffByAFactorThatDoesNotExplainThem) {
  Case given;
  given.scale(0.5);
  given.claim.numbers[7] += 3;  // its bound is 0.8
  EXPECT_EQ(fault_of(given.judged()), "") << "one number beside the factor";
  given.scale(0.5, 0, 4);
  given.scale(0.8, 4, 4);
  EXPECT_EQ(fault_of(given.judged()), "") << "a factor of its own in each row";
  given.scale(0.5);
  given.claim.numbers[0] = kNan;
  EXPECT_EQ(fault_of(given.judged()), "") << "a row without numbers";
}

TEST(WholeRows, OfASingleNumberNeedNoFactor) {
  Case given;
  given.expected = given.claim.numbers = {0, 0, 0, 4, 5, 6, 7, 8};
  given.claim.numbers[3] = 2;
  const TensorAgreement found = given.judged();
  EXPECT_EQ(found.outside, 1);
  EXPECT_EQ(fault_of(found), "");
}

// A row within the bounds of its elements, whose bounds as a whole are smaller.
TEST(WholeRows, AreJudgedByWhatTheirBoundsSave) {
  Case given;
  given.scale(1.05, 4, 4);
  const double allowed = 0.1 * 174, moved = 0.05 * 174;  // of the gain
  given.savings[1] = {allowed - moved * 1.001, 0};
  EXPECT_TRUE(given.judged().agrees()) << "just within the band";
  given.savings[1] = {allowed - moved * 0.999, 0};
  const TensorAgreement found = given.judged();
  EXPECT_EQ(found.outside, 0);
  EXPECT_FALSE(found.agrees());
  EXPECT_EQ(found.functionals[0].outside_at, std::vector<int64_t>{4});
  EXPECT_EQ(found.functionals[1].outside, 0);
  EXPECT_EQ(fault_of(found), "scores are 1.050 of what they should be");
  // Of the difference 5 % of the elements times 10 % of them.
  given.savings[1] = {0, 0.05 * (allowed - moved * 1.001)};
  EXPECT_TRUE(given.judged().agrees());
  given.savings[1] = {0, 0.05 * (allowed - moved * 0.999)};
  EXPECT_EQ(given.judged().functionals[1].outside_at, std::vector<int64_t>{4});
}

// A factor, and a rest that is within the elements' bounds and across the row, but not
// within those of a difference.
TEST(WholeRows, AreNotExplainedByAFactorThatLeavesADifference) {
  Case given;
  given.claim.numbers = {0.5, 1, 1.5, 2, 2.5 + 0.48, 3 - 0.4, 3.5, 4};
  EXPECT_EQ(fault_of(given.judged()), "scores are 0.500 of what they should be");
  const double gain = 0.1 * 174, difference = 0.1 * 0.5 * 174;
  given.savings[1] = {0.999 * gain, 0.999 * difference};
  const TensorAgreement found = given.judged();
  EXPECT_FALSE(found.agrees());
  EXPECT_EQ(fault_of(found), "");
  given.claim.numbers = {0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4};
  EXPECT_EQ(fault_of(given.judged()), "scores are 0.500 of what they should be");
}

TEST(WholeRows, LeaveOutElementsThatAreUncertainOrHaveNoBound) {
  Case given;
  given.claim.numbers[0] = 50;
  given.claim.numbers[5] = 50;
  given.certain.assign(8, true);
  given.certain[0] = false;
  given.bounds[5] = kInfinity;
  given.savings[1] = {1e6, 1e6};  // of the whole row
  const TensorAgreement found = given.judged();
  EXPECT_EQ(found.undecided, 2);
  EXPECT_TRUE(found.agrees());
  EXPECT_EQ(found.functionals[0].rows, 2);
  EXPECT_NEAR(found.functionals[0].all.value, 1, 1e-12);
  EXPECT_NEAR(found.functionals[0].all.band, 0.1, 1e-12) << "and what the row's bounds save";
}

TEST(WholeRows, LeaveOutRowsOfZerosAndThoseWithoutNumbers) {
  Case given;
  std::fill_n(given.expected.begin(), 4, 0);
  given.claim.numbers = {0.1, 0, 0, 0, 5, 6, kNan, 8};
  EXPECT_TRUE(given.judged().functionals.empty());
  given.claim.numbers[6] = 7;
  EXPECT_EQ(given.judged().functionals[0].rows, 1);
  EXPECT_EQ(given.judged().functionals[0].worst_at, std::vector<int64_t>{1});
}

TEST(WholeRows, AllowTheRoundingOfStoredNumbers) {
  Case given;
  given.bounds = Numbers(8, 0);
  given.claim.storage = Dtype::bf16;
  const FunctionalAgreement gain = given.judged().functionals[0];
  EXPECT_GT(gain.all.band, 0x1p-10);
  EXPECT_LT(gain.all.band, 0x1p-8);
}

// The directions in which bounds are asked for are those that are judged.
TEST(WholeRows, AreJudgedInTwoDirections) {
  EXPECT_EQ(judged_directions(Numbers{1, 2}, Numbers{1.5, 1}), (std::vector<Numbers>{{1, 2}, {0.5, -1}}));
  EXPECT_TRUE(judged_directions(Numbers{1, 2}, Numbers{1.5, kNan}).empty());
}

// A gain is a weighted mean of elements' errors: whatever these are within their bounds, no row is outside.
RC_GTEST_PROP(WholeRows, AreNeverOutsideWhereTheirElementsAreNot, ()) {
  test::Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t rows = *test::integer(1, 3), columns = *test::integer(1, 300);
  RealClaim claim{{rows, columns}, {}};
  Numbers expected, bounds;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const double number =
        random.index(8) == 0 ? 0 : std::ldexp(random.uniform(-1, 1), -static_cast<int>(random.index(40)));
    const double bound =
        random.index(3) == 0
            ? 0
            : std::abs(number) * std::ldexp(random.uniform(0, 1), -static_cast<int>(random.index(50)));
    const double signs[] = {-1, 1, random.uniform(-1, 1)};
    expected.push_back(number);
    bounds.push_back(bound);
    claim.numbers.push_back(number + 0.999999 * signs[random.index(3)] * bound);
  }
  TensorAgreement agreement = compare("score", claim, expected, bounds);
  judge_rows({claim, expected, bounds}, rows_of(claim), "scores", agreement);
  RC_ASSERT(agreement.outside == 0);
  RC_ASSERT(agreement.agrees());
}

const TensorAgreement& find(const test::ReplayJudgement& judgement, const std::string& tensor) {
  return *std::ranges::find(judgement.agreements, tensor, &TensorAgreement::tensor);
}

// Clusters so large that a factor of their mean is within the bounds of all its elements, for
// inputs rounded to 16 bits.
TEST(WholeRows, OfMergedEntriesShowFactorsThatNoElementDoes) {
  reference::Arithmetic arithmetic = reference::double_precision();
  arithmetic.input = 0x1p-12;
  const Policy policy{SnapKv{8, 1}, {}, {}, {}, test::with_target(D2o{}, test::kMergeAll)};
  const test::ReplayCase given(test::trace_layer({{4, 2, 32, 9}, 1200, 8, 0, 3}), policy, 9, 0, arithmetic);
  for (const auto& [name, claim, numbers] : {std::tuple("merged_key", &LayerClaims::merged_key, "keys"),
                                             {"merged_value", &LayerClaims::merged_value, "values"}}) {
    SCOPED_TRACE(name);
    const LayerClaims right = claims_of(given.own);
    const TensorAgreement own = find(given.judge(right), name);
    ASSERT_EQ(own.functionals.size(), 2u);
    EXPECT_EQ(own.functionals[0].rows, 18) << "a row for each entry";
    const double band = own.functionals[0].worst.band;
    EXPECT_EQ(own.functionals[0].worst_at, std::vector<int64_t>{0});
    const auto with_factor = [&](double factor) {
      LayerClaims claims = right;
      for (int64_t c = 0; c < 32; ++c) (claims.*claim)->numbers[c] *= factor;
      return find(given.judge(claims), name);
    };
    EXPECT_TRUE(with_factor(1 - 0.999 * band).agrees());
    const TensorAgreement wrong = with_factor(1 - 1.001 * band);
    EXPECT_EQ(wrong.outside, 0) << "no element is";
    EXPECT_FALSE(wrong.agrees());
    EXPECT_EQ(wrong.functionals[0].outside_at, std::vector<int64_t>{0});
    EXPECT_EQ(wrong.diagnosis.value().fault,
              fmt::format("{} are {:.3f} of what they should be", numbers, 1 - 1.001 * band));
  }
}

}  // namespace
}  // namespace kvbound::sim::whole_rows_test
