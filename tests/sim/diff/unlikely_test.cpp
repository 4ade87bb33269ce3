#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/sim/diff/agreement_figures.hpp>

namespace kvbound::sim::unlikely_test {
namespace {

// One tensor whose farthest test is so far off, of as many tests.
JudgedTensor judged(const std::string& tensor, int64_t layer, double value, int64_t count = 100) {
  TensorAgreement agreement;
  agreement.tensor = tensor;
  agreement.chances.count = count;
  const std::vector<double> undeclared{1.1e-4, 2e-3, 1e-3, 8e-3, 1e-3};
  agreement.chances.farthest = {{"gain", {3, 5}, 1.0001, 1e-4, 1e-4, undeclared},
                                {"logit scale", {ChanceTest::kAll, 5}, value, 1e-4, 1e-4, undeclared}};
  return {layer, agreement};
}

TEST(Unlikely, IsWhatIsBeyondChanceInSoManyTests) {
  const std::vector<JudgedTensor> few{judged("output", 0, 1.0008)},
      many{judged("output", 0, 1.0008, 1 << 20)};
  const ChanceVerdict verdict(few);
  EXPECT_EQ(verdict.tests, 100);
  EXPECT_NEAR(2 * 100 * std::exp(-verdict.deviations * verdict.deviations / 2), 1e-9, 1e-15);
  EXPECT_TRUE(verdict.found.empty()) << "7 deviations beyond the bias are as unlikely as 5e-9";
  EXPECT_EQ(ChanceVerdict({judged("output", 0, 1.0009)}).found.size(), 1u);
  const std::vector<JudgedTensor> more{judged("output", 0, 1.0009, 1 << 20)};
  EXPECT_TRUE(ChanceVerdict(more).found.empty());
  EXPECT_EQ(ChanceVerdict({}).tests, 0);
}

TEST(Unlikely, SaysWhereAndHowUnlikely) {
  const std::vector<JudgedTensor> tensors{judged("prompt_output", 0, 1.0001), judged("output", 0, 1.03),
                                          judged("output", 1, 1.04), judged("output", 2, 1.0001)};
  const ChanceVerdict verdict(tensors);
  ASSERT_EQ(verdict.found.size(), 1u);
  EXPECT_EQ(
      text_of(verdict.found[0]),
      "layers.1.output[:, 5]: logit scale 1.0400 of all rows is unlikely by rounding (0.9992 to 1.0008; probability "
      "below 1e-300); so is 1 more layer");
  const Cube cube = unlikely_cube(verdict);
  ASSERT_EQ(cube.rows(), 1);
  EXPECT_EQ(cube.find("index")->texts()[0], "[:, 5]");
  EXPECT_EQ(cube.find("other_layers")->numbers()[0], 1);
  EXPECT_EQ(cube.find("explained_by")->texts()[0], "");
  EXPECT_EQ(chance_facts(verdict)["tests"], 400);
}

TEST(Unlikely, NamesTheFirstRoundingThatWouldExplainIt) {
  const std::vector<JudgedTensor> tensors{judged("output", 0, 0.998)};
  const UnlikelyOutput unlikely = ChanceVerdict(tensors).found.at(0);  // refers to tensors
  EXPECT_EQ(unlikely.explained_by, "weights of 16 bits (BF16)");
  // 2 * 100 * exp(-19^2 / 2) = 7.4e-77
  EXPECT_EQ(unlikely.probability, -76);
  EXPECT_EQ(
      text_of(unlikely),
      "layers.0.output[:, 5]: logit scale 0.9980 of all rows is unlikely by rounding (0.9992 to 1.0008; probability "
      "below 1e-76); weights of 16 bits (BF16) would explain it");
}

TEST(Unlikely, TriesEveryRoundingBeforeItNamesNone) {
  // Beyond what weights and parts would do, but not products in TF32.
  JudgedTensor tensor = judged("output", 0, 1.01);
  for (ChanceTest& test : tensor.agreement.chances.farthest) test.undeclared = {1e-4, 1e-4, 1e-4, 1e-4, 5e-3};
  EXPECT_EQ(ChanceVerdict({tensor}).found.at(0).explained_by, "products in TF32");
  for (ChanceTest& test : tensor.agreement.chances.farthest) test.undeclared.back() = 2e-3;
  EXPECT_EQ(ChanceVerdict({tensor}).found.at(0).explained_by, "")
      << "5 deviations are among 200 tests for none";
}

TEST(Unlikely, LeavesOutWhatDiffers) {
  JudgedTensor wrong = judged("output", 0, 1.03);
  wrong.agreement.outside = 1;
  const std::vector<JudgedTensor> tensors{wrong};
  EXPECT_TRUE(ChanceVerdict(tensors).found.empty());
}

}  // namespace
}  // namespace kvbound::sim::unlikely_test
