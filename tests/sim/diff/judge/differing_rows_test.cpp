#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/sim/diff/judge/differing_rows.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::differing_rows_test {
namespace {

constexpr int64_t kTokens = 300, kDim = 16, kSteps = 6, kHeads = 2;

// Two query heads of a few steps over one cache, in single precision.
struct Case {
  Case() {
    test::Random random(4);
    queries = random.matrix(kSteps * kHeads, kDim);
    keys = random.matrix(kTokens, kDim);
    values = random.matrix(kTokens, kDim);
    expected = reference::attention(queries, keys, values, 0.25).output;
    claim = {{kSteps, kHeads, kDim}, {expected.numbers().begin(), expected.numbers().end()}, Dtype::f32};
  }
  void scale(int64_t row, double factor) {
    for (int64_t c = 0; c < kDim; ++c) claim.numbers[row * kDim + c] *= factor;
  }
  // Adds the rows from the last one on.
  std::optional<ExplainedRows> diagnosis() const {
    const reference::Arithmetic arithmetic = reference::single_precision();
    const reference::AttentionErrors errors =
        reference::attention_errors(queries, keys, values, 0.25, {}, arithmetic);
    DifferingRows rows(claim, 0.25);
    for (int64_t row = kSteps * kHeads; row-- > 0;)
      rows.add(row, row, queries, keys, values, {}, errors, arithmetic);
    return rows.diagnosis(expected.numbers());
  }

  Matrix queries, keys, values, expected;
  RealClaim claim;
};

TEST(DifferingRows, AreTheFirstInWhateverOrderTheyAreAdded) {
  Case given;
  for (int64_t row = 0; row < kSteps * kHeads; ++row) given.scale(row, row < 8 ? 0.5 : 0.25);
  const std::optional<ExplainedRows> found = given.diagnosis();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->fault, "outputs are 0.500 of what they should be");
  EXPECT_EQ(found->rows, 8);
  given.scale(7, 0.5);
  EXPECT_FALSE(given.diagnosis());
}

TEST(DifferingRows, AreHeldAgainstTheOtherHeadsOfTheirStep) {
  Case given;
  for (int64_t t = 0; t < kSteps; ++t) {
    for (int64_t c = 0; c < kDim; ++c) {
      std::swap(given.claim.numbers[2 * t * kDim + c], given.claim.numbers[(2 * t + 1) * kDim + c]);
    }
  }
  EXPECT_EQ(given.diagnosis().value().fault, "query heads 0, 1 hold the outputs of 1, 0");
}

TEST(DifferingRows, OfNoneSayNothing) {
  const Case given;
  EXPECT_FALSE(DifferingRows(given.claim, 0.25).diagnosis(given.expected.numbers()));
}

}  // namespace
}  // namespace kvbound::sim::differing_rows_test
