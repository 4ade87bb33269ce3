#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/check/attention.hpp>

#include "support/kernel_file.hpp"

namespace kvbound::sim::attention_test {
namespace {

// Two query heads on one KV head of one number. The keys are 0, so that outputs are means of
// the values that are seen.
test::KernelFile file(std::vector<double> values, std::vector<double> out) {
  test::KernelFile result;
  const auto tokens = std::ssize(values), rows = std::ssize(out);
  result.reals["q"] = {{rows, 1, 1}, std::vector<double>(rows, 1.0)};
  result.reals["k"] = {{tokens, 1, 1}, std::vector<double>(tokens, 0.0)};
  result.reals["v"] = {{tokens, 1, 1}, values};
  result.reals["out"] = {{rows, 1, 1}, out};
  return result;
}

CheckResult checked(const test::KernelFile& given) {
  return given.checked([](CheckFile& opened) { return check_attention(opened, {}); });
}
bool agrees(const test::KernelFile& given) { return checked(given).tensors.front().agrees(); }

TEST(CheckAttention, QueriesAreTheLastOfTheirSequence) {
  EXPECT_TRUE(agrees(file({1, 2, 6}, {3, 3})));
  test::KernelFile causal = file({1, 2, 6}, {1.5, 3});
  EXPECT_FALSE(agrees(causal));
  causal.options["causal"] = "true";
  EXPECT_TRUE(agrees(causal));
  causal.options["window_left"] = "1";
  EXPECT_FALSE(agrees(causal));
  causal.reals["out"].second = {1.5, 4};
  EXPECT_TRUE(agrees(causal));
  causal.options["window_left"] = "0";
  causal.reals["out"].second = {2, 6};
  EXPECT_TRUE(agrees(causal));
}

TEST(CheckAttention, SequencesAreApart) {
  test::KernelFile given = file({1, 3, 10, 20, 30}, {2, 15, 20});
  given.options["causal"] = "true";
  given.integers["kv_indptr"] = {{3}, {0, 2, 5}};
  given.integers["qo_indptr"] = {{3}, {0, 1, 3}};
  EXPECT_TRUE(agrees(given));
  given.integers["kv_indptr"].second = {0, 1, 5};
  EXPECT_FALSE(agrees(given));
}

TEST(CheckAttention, PagesAreInTheOrderOfTheTable) {
  test::KernelFile given = file({7, 9, 4, 0}, {6, 9});
  given.reals["k"].first = given.reals["v"].first = {2, 2, 1, 1};
  given.integers["kv_indices"] = {{2}, {1, 0}};
  given.integers["kv_indptr"] = {{3}, {0, 1, 2}};
  given.integers["kv_last_page_len"] = {{2}, {1, 1}};
  given.reals["out"].second = {4, 7};
  EXPECT_TRUE(agrees(given));
  given.integers["kv_last_page_len"].second = {2, 2};
  EXPECT_FALSE(agrees(given));
  given.reals["out"].second = {2, 8};
  EXPECT_TRUE(agrees(given));
}

TEST(CheckAttention, KeysAndValuesHaveTheSameLayout) {
  test::KernelFile given = file({7, 9, 4, 0}, {5});
  given.reals["k"].first = {1, 4, 1, 1};
  EXPECT_THROW(checked(given), TraceError) << "ragged values would be read where pages of dense ones are";
  given.reals["v"].first = {1, 4, 1, 1};
  EXPECT_TRUE(agrees(given));
  given.reals["k"].first = {4, 1, 1};
  EXPECT_THROW(checked(given), TraceError);
}

TEST(CheckAttention, LogSumExpsHaveABase) {
  test::KernelFile given = file({1, 1, 1, 1}, {1});
  given.reals["lse"] = {{1, 1}, {std::log(4.0)}};
  EXPECT_TRUE(checked(given).tensors.back().agrees());
  given.options["lse_base"] = "2";
  EXPECT_FALSE(checked(given).tensors.back().agrees());
  given.reals["lse"].second = {2};
  EXPECT_TRUE(checked(given).tensors.back().agrees());
}

// 16 equal exponentials but for the first: of each rounded weight 2^-8 is lost at most.
TEST(CheckAttention, LogSumExpsMayBeOfRoundedWeights) {
  test::KernelFile given = file(std::vector<double>(16, 1.0), {1});
  given.reals["lse"] = {{1, 1}, {std::log(16.0) + 0x1p-9}};
  EXPECT_FALSE(checked(given).tensors.back().agrees());
  given.options["weights"] = "BF16";
  EXPECT_TRUE(checked(given).tensors.back().agrees());
}

TEST(CheckAttention, WithoutPositionsQueriesMayOutnumberTokens) {
  test::KernelFile given = file({1, 3}, {2, 2, 2});
  given.integers["qo_indptr"] = {{2}, {0, 3}};
  EXPECT_TRUE(agrees(given));
  given.options["causal"] = "true";
  EXPECT_THROW(checked(given), TraceError);
}

TEST(CheckAttention, InputsOfDifferentTypesAreInTheirOwn) {
  test::KernelFile given = file({1 + 0x1p-12}, {1});
  given.singles["q"] = given.reals.extract("q").mapped();
  EXPECT_FALSE(agrees(given)) << "values are of F64 and not rounded to the queries' F32, or further";
  given.reals["out"].second = {1 + 0x1p-12};
  EXPECT_TRUE(agrees(given));
  EXPECT_EQ(checked(given).declared->accumulate, Dtype::f32);
}

TEST(CheckAttention, SequencesWithoutTokensHaveNoErrorToSpeakOf) {
  test::KernelFile given = file({}, {0});
  given.reals["lse"] = {{1, 1}, {-std::numeric_limits<double>::infinity()}};
  const TensorAgreement lse = checked(given).tensors.back();
  EXPECT_TRUE(lse.agrees());
  EXPECT_EQ(lse.worst->error, 0);
}

TEST(CheckAttention, TheScaleIsOneOverTheRootOfHeadDim) {
  test::KernelFile given;
  given.reals["q"] = {{1, 1, 4}, {1, 1, 1, 1}};
  given.reals["k"] = {{2, 1, 4}, {0.5, 0.5, 0.5, 0.5, 0, 0, 0, 0}};
  given.reals["v"] = {{2, 1, 1}, {1, 0}};
  given.reals["out"] = {{1, 1, 1}, {1 / (1 + std::exp(-1.0))}};
  EXPECT_TRUE(agrees(given));
  given.options["sm_scale"] = "1";
  EXPECT_FALSE(agrees(given));
  given.reals["out"].second = {1 / (1 + std::exp(-2.0))};
  EXPECT_TRUE(agrees(given));
}

TEST(CheckAttention, WiderInputsThanTheKernelsAreRounded) {
  test::KernelFile given = file({1 + 0x1p-12}, {1});
  EXPECT_FALSE(agrees(given));
  given.options["storage"] = "F16";
  EXPECT_TRUE(agrees(given));
}

}  // namespace
}  // namespace kvbound::sim::attention_test
