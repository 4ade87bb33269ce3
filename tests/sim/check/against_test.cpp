#include <gtest/gtest.h>

#include <kvbound/sim/check/against.hpp>
#include <kvbound/sim/check/input_digest.hpp>

namespace kvbound::sim::against_test {
namespace {

using Pairs = std::vector<std::pair<int64_t, int64_t>>;
using Cases = std::vector<int64_t>;

TEST(SharedCases, OfTheSameNumberGoTogether) {
  const SharedCases shared = shared_cases({"x", "x", "y"}, {"x", "x", "y"});
  EXPECT_EQ(shared.pairs, (Pairs{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_TRUE(shared.only_a.empty());
  EXPECT_TRUE(shared.only_b.empty());
}

TEST(SharedCases, OfOtherNumbersAreFoundByTheirInputs) {
  const SharedCases shared = shared_cases({"x", "y", "z", "x"}, {"z", "w", "x"});
  EXPECT_EQ(shared.pairs, (Pairs{{0, 2}, {2, 0}, {3, 2}}));
  EXPECT_EQ(shared.only_a, (Cases{1}));
  EXPECT_EQ(shared.only_b, (Cases{1}));
}

TEST(SharedCases, HaveACounterpartEachWhereTheirInputsAreRepeated) {
  EXPECT_EQ(shared_cases({"x"}, {"y", "x", "x"}).pairs, (Pairs{{0, 1}, {0, 2}}));
  EXPECT_EQ(shared_cases({"y", "x", "x"}, {"x"}).pairs, (Pairs{{1, 0}, {2, 0}}));
}

TEST(InputDigest, TellsNumbersToTheLastBitAndWhereTheyEnd) {
  const auto digest = [](std::initializer_list<std::vector<double>> parts) {
    InputDigest result;
    for (const std::vector<double>& part : parts) result.add({std::ssize(part)}, part);
    return result.text();
  };
  EXPECT_EQ(digest({{1, 2}, {3}}), digest({{1, 2}, {3}}));
  EXPECT_NE(digest({{1, 2}, {3}}), digest({{1}, {2, 3}}));
  EXPECT_NE(digest({{0.0}}), digest({{-0.0}}));
  const std::vector<double> six(6);
  EXPECT_NE(InputDigest().add({2, 3}, six).text(), InputDigest().add({3, 2}, six).text());
  EXPECT_NE(InputDigest().add("a").add("b").text(), InputDigest().add("ab").text());
}

// Cases of one number each.
CheckCases cases(const std::vector<std::string>& inputs, const std::vector<double>& numbers) {
  const int64_t count = std::ssize(inputs);
  TensorAgreement found;
  found.tensor = "out";
  found.elements = found.judged = count;
  std::vector<int64_t> begins;
  for (int64_t i = 0; i <= count; ++i) begins.push_back(i);
  CheckCases result{"sequence", inputs};
  result.rows.push_back(checked_rows({{count, 1}, numbers, Dtype::f32}, found, {count}, begins));
  return result;
}

TEST(CheckComparison, IsOfTheRowsOfTheSameInputs) {
  CheckResult a, b;
  a.cases = cases({"x", "y"}, {1, 2});
  b.cases = cases({"y", "x"}, {2, 1});
  EXPECT_EQ(compare_results(a, b).rows.tensors[0].count(RowVerdict::identical), 2);
}

TEST(CheckComparison, IsInUnitsOfTheCoarserAccumulator) {
  CheckResult a, b;
  a.cases = cases({"x"}, {1});
  b.cases = cases({"x"}, {1.5});
  a.declared.emplace().accumulate = Dtype::f64;
  b.declared.emplace().accumulate = Dtype::f32;
  const CheckComparison found = compare_results(a, b);
  ASSERT_EQ(found.rows.tensors.size(), 1U);
  EXPECT_EQ(found.rows.tensors[0].distances->unit, Dtype::f32);
  EXPECT_EQ(found.rows.tensors[0].distances->farthest.ulps, 0x1p22);
  b.cases = cases({"y"}, {1.5});
  EXPECT_EQ(compare_results(a, b).rows.tensors[0].rows(), 0);
  b.cases->rows.clear();
  EXPECT_TRUE(compare_results(a, b).rows.tensors.empty());
}

}  // namespace
}  // namespace kvbound::sim::against_test
