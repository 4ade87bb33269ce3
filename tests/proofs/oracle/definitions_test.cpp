// Attention and scores by hand, and their error bounds beside the errors that logits
// within their bounds can cause.
#include <stdexcept>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/reference/numerics/gram_norms.hpp>

#include "support/random_layer.hpp"

namespace kvbound::oracle::definitions_test {
namespace {

using test::matrix;

testing::AssertionResult are(const Row& row, const Reals& expected) {
  if (row.size() != expected.size()) return testing::AssertionFailure() << row.size() << " numbers";
  for (size_t i = 0; i < row.size(); ++i) {
    if (!(abs(row[i].value - expected[i]) <= Real("1e-47")))
      return testing::AssertionFailure() << row[i].value.str(20) << " at " << i;
  }
  return testing::AssertionSuccess();
}

Reals thirds(std::initializer_list<int64_t> numerators) {
  Reals result;
  for (const int64_t numerator : numerators) result.push_back(Real(numerator) / 3);
  return result;
}

// The largest change of softmax weight `entry` if each logit moves to an end of its bound.
Real moved_weight(const Row& logits, size_t entry) {
  const Real exact = softmax(values_of(logits))[entry];
  Real distance = 0;
  for (size_t signs = 0; signs < size_t{1} << logits.size(); ++signs) {
    Reals moved = values_of(logits);
    for (size_t j = 0; j < moved.size(); ++j)
      moved[j] += (signs >> j & 1) != 0 ? logits[j].bound : -logits[j].bound;
    distance = std::max<Real>(distance, abs(softmax(moved)[entry] - exact));
  }
  return distance;
}

TEST(BoundedSoftmax, IsAsFarAsTheLogitsMayMoveIt) {
  for (const Row& logits : {Row{{0, 0x1p-10}, {0, 0x1p-10}}, Row{{0, 0x1p-10}, {-20, 0x1p-10}},
                            Row{{0, 0x1p-12}, {1, 0x1p-10}, {-1, 0x1p-11}}}) {
    const Row weights = softmax(logits);
    for (size_t j = 0; j < weights.size(); ++j) {
      EXPECT_GE(weights[j].bound, moved_weight(logits, j)) << j;
      EXPECT_LE(weights[j].bound, Real(1.01) * moved_weight(logits, j)) << j;
    }
  }
  EXPECT_THROW(softmax(Row{{0, 0.9}, {0, 0.9}}), std::domain_error) << "nothing is known of the weights";
}

TEST(BoundedSoftmax, RoundsTheDistanceToTheLargestLogit) {
  const Bounded weight = softmax(Row{0.1, -600})[1];
  EXPECT_GE(weight.bound, 602 * unit_roundoff() * weight.value);
  EXPECT_LE(weight.bound, 610 * unit_roundoff() * weight.value);
}

TEST(BoundedLogSumExp, RoundsItsResult) {
  const Bounded two = log_sum_exp(Row{1000, 1000});
  EXPECT_LT(abs(two.value - 1000 - log(Real(2))), Real("1e-45"));
  EXPECT_GE(two.bound, unit_roundoff() * two.value);
  EXPECT_LE(two.bound, Real(1.01) * unit_roundoff() * two.value);
  const Bounded moved = log_sum_exp(Row{{0, 0x1p-10}, {0, 0x1p-10}});
  EXPECT_GE(moved.bound, Real(0x1p-10));
}

TEST(CausalSoftmax, SeesThePositionsUpToItsOwn) {
  const Rows weights = causal_softmax({Row{7, 7, 7, 7}, Row{7, 7, 7, 7}}, 1);
  EXPECT_TRUE(are(weights[0], {0.5, 0.5, 0, 0}));
  EXPECT_TRUE(are(weights[1], thirds({1, 1, 1, 0})));
}

TEST(BoundedAttention, CountsVotes) {
  const Attention seen =
      attention(matrix({{0}}), matrix({{5}, {-5}}), matrix({{4, 8}, {8, 0}}), 0.5, std::vector<double>{1, 3});
  EXPECT_TRUE(are(seen.output[0], {7, 2}));
  EXPECT_TRUE(are(seen.log_sum_exp, {log(Real(4))}));
  const Attention unvoted = attention(matrix({{0}}), matrix({{5}, {-5}}), matrix({{4, 8}, {8, 0}}), 0.5);
  EXPECT_TRUE(are(unvoted.output[0], {6, 4}));
}

TEST(MaxPool, IsTheLargestWithinHalfTheWidth) {
  const Rows scores{Row{{1, 0.5}, {5, 0.125}, {2, 0.25}, {4, 0}}};
  const Row pooled = max_pool(scores, 3).front();
  EXPECT_TRUE(are(pooled, {5, 5, 5, 4}));
  const Real bounds[] = {0.5, 0.5, 0.25, 0.25};
  for (size_t j = 0; j < pooled.size(); ++j)
    EXPECT_EQ(pooled[j].bound, bounds[j]) << "the largest of the entries pooled";
  EXPECT_TRUE(are(max_pool(scores, 1).front(), {1, 5, 2, 4}));
}

TEST(GroupMean, IsOverEachGroupsRows) {
  const Rows means = group_mean({Row{1, 2}, Row{3, 6}, Row{5, 5}, Row{7, 9}}, 2);
  ASSERT_EQ(means.size(), 2u);
  EXPECT_TRUE(are(means[0], {2, 4}));
  EXPECT_TRUE(are(means[1], {6, 7}));
}

TEST(StageTwoScores, AverageProductsOrMultiplyMeans) {
  const Rows scores{Row{1, 2}, Row{3, 6}}, norms{Row{1, 1}, Row{2, 4}};
  EXPECT_TRUE(are(stage_two_scores(scores, norms, 1, GqaProduct::mean_of_products), {5, 15.5}));
  EXPECT_TRUE(are(stage_two_scores(scores, norms, 1, GqaProduct::product_of_means), {4.5, 12.5}));
}

TEST(BoundedNorms, AllowForTheGramMatrix) {
  const Matrix values = matrix({{3, 4}}), identity = matrix({{1, 0}, {0, 1}});
  EXPECT_TRUE(are(projected_value_norms(values, identity, Norm::l1), {7}));
  const Row lengths = projected_value_norms(values, identity, Norm::l2);
  EXPECT_TRUE(are(lengths, {5}));
  EXPECT_GE(lengths[0].bound, 5 * Real(reference::kGramNormError));
}

}  // namespace
}  // namespace kvbound::oracle::definitions_test
