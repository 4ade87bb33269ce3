#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::perturbation_test {
namespace {

using oracle::Bounded;
using oracle::Real;
using oracle::Row;
using test::matrix;
using test::message_of;
using Positions = std::vector<int64_t>;
using Numbers = std::vector<double>;

// By hand: A = (5/8, 1/8, 1/4), ||V|| = (8, 16, 4), kept {0, 1}, of which {0} is stage one.
const Numbers kWeights{0.625, 0.125, 0.25};
const Numbers kNorms{8, 16, 4};
const Positions kKept{0, 1}, kOne{0};

TEST(AttentionMass, AddsTheChosenEntries) {
  EXPECT_EQ(attention_mass(kWeights, Positions{0, 2}), 0.875);
  EXPECT_EQ(attention_mass(kWeights, {}), 0);
}

TEST(KeptAttentionWeights, AreSharesOfTheKeptMass) {
  // 5/8 and 1/8 divided by 3/4: 5/6 and 1/6.
  const Numbers shares = kept_attention_weights(kWeights, kKept);
  EXPECT_DOUBLE_EQ(shares[0], 5.0 / 6);
  EXPECT_DOUBLE_EQ(shares[1], 1.0 / 6);
  EXPECT_EQ(shares[2], 0);
  EXPECT_EQ(kept_attention_weights(kWeights, Positions{1}), (Numbers{0, 1, 0}));
}

TEST(KeptAttentionWeights, NeedKeptMass) {
  const std::string refusal = "the kept entries hold no attention mass: 1/mass is infinite";
  EXPECT_EQ(message_of<NonFinite>([] { kept_attention_weights(kWeights, {}); }), refusal);
  EXPECT_EQ(message_of<NonFinite>([] { kept_attention_weights(Numbers{0, 1}, Positions{0}); }), refusal);
  EXPECT_EQ(message_of<NonFinite>([] { eviction_weights(Numbers{0, 1}, Positions{0}); }), refusal);
}

TEST(EvictionWeights, TakeFromTheKeptWhatTheEvictedHad) {
  // e = 1/4 is subtracted from the kept entries in shares of 5/6 and 1/6: -5/24 and -1/24.
  const EvictionWeights eviction = eviction_weights(kWeights, kKept);
  EXPECT_DOUBLE_EQ(eviction.weights[0], -5.0 / 24);
  EXPECT_DOUBLE_EQ(eviction.weights[1], -1.0 / 24);
  EXPECT_EQ(eviction.weights[2], 0.25);
  EXPECT_EQ(eviction.kept_mass, 0.75);
  EXPECT_EQ(eviction.evicted_mass, 0.25);
}

TEST(EvictionWeights, AreZeroWhereNothingIsEvicted) {
  const Numbers logits{1, 1};
  for (const EvictionWeights& eviction : {eviction_weights(Numbers{0.5, 0.5}, Positions{0, 1}),
                                          eviction_weights(logits, Numbers{0.5, 0.5}, Positions{0, 1})}) {
    EXPECT_EQ(eviction.weights, (Numbers{0, 0}));
    EXPECT_EQ(eviction.evicted_mass, 0);
    EXPECT_EQ(output_perturbation(eviction, matrix({{3}, {5}}), matrix({{2}})), 0);
    EXPECT_EQ(perturbation_bound(eviction, Numbers{6, 10}), 0);
  }
}

TEST(EvictionWeights, NeedOnlyTheKeptLogitsWhereTheKeptMassUnderflows) {
  // Entry 0 has all attention; the kept entries, 10^4 nats below, share it as 1 : 3.
  const Numbers logits{0, -1e4, -1e4 + std::log(3.0)}, weights{1, 0, 0};
  const EvictionWeights eviction = eviction_weights(logits, weights, Positions{1, 2});
  const Row expected = oracle::eviction_weights(oracle::exactly(logits), Positions{1, 2});
  EXPECT_TRUE(oracle::all_within(eviction.weights, expected));
  EXPECT_NEAR(eviction.weights[1], -0.25, 1e-11);
  EXPECT_EQ(eviction.kept_mass, 0);
  EXPECT_THROW(eviction_weights(weights, Positions{1, 2}), NonFinite) << "from the weights alone it is lost";
}

TEST(EvictionWeights, NeedAKeptEntry) {
  EXPECT_EQ(message_of<NonFinite>([] {
              eviction_weights(Numbers{0, 0}, Numbers{0.5, 0.5}, {});
            }),
            "log-sum-exp of the kept logits[0] is -inf");
}

TEST(OutputPerturbation, IsTheNormOfTheOutputsChange) {
  // A = (1/2, 1/4, 1/4), kept {0}; V W = 4, 2, -8. o = 2 + 1/2 - 2 = 1/2, o^ = 4: L = 7/2.
  const Numbers weights{0.5, 0.25, 0.25};
  const Matrix values = matrix({{2}, {1}, {-4}}), projection = matrix({{2}});
  EXPECT_EQ(output_perturbation(eviction_weights(weights, Positions{0}), values, projection), 3.5);
  // Its bound: 4/2 + 2/4 + 8/4 = 9/2.
  EXPECT_EQ(perturbation_bound(eviction_weights(weights, Positions{0}), Numbers{4, 2, 8}), 4.5);
}

TEST(OutputPerturbation, AddsAllColumns) {
  // w = (-1/2, 1/2), V W = (1, -3), (5, 1): the change is (2, 2), its norm 4.
  const EvictionWeights eviction = eviction_weights(Numbers{0.5, 0.5}, Positions{0});
  EXPECT_EQ(output_perturbation(eviction, matrix({{1, -3}, {5, 1}}), matrix({{1, 0}, {0, 1}})), 4);
}

TEST(PerturbationBound, IsReachedByValuesThatPullApart) {
  // w = (-1/2, 1/2), V = -3 and 5: L = 3/2 + 5/2 = theta.
  const EvictionWeights eviction = eviction_weights(Numbers{0.5, 0.5}, Positions{0});
  EXPECT_EQ(output_perturbation(eviction, matrix({{-3}, {5}}), matrix({{1}})), 4);
  EXPECT_EQ(perturbation_bound(eviction, Numbers{3, 5}), 4);
}

TEST(PerturbationBound, GrowsFromThetaToStageTwosToAttentions) {
  // C = 5 + 2 + 1 = 8, S = 7, Sigma = 3/4: theta = 8 - (2 - 4/3) 7 = 10/3.
  EXPECT_DOUBLE_EQ(perturbation_bound(eviction_weights(kWeights, kKept), kNorms), 10.0 / 3);
  // sigma = 5/8, 2 - 8/5 = 2/5: C' = 8 - 2/5 * 5 = 6, theta^ = 6 - 2/5 * 2 = 26/5.
  EXPECT_DOUBLE_EQ(stage_two_bound(kWeights, kNorms, kOne, kKept), 5.2);
  // M = 4: theta^_relax = 6 - 4 * 2/5 * 1/8 = 29/5.
  EXPECT_DOUBLE_EQ(attention_only_bound(kWeights, kNorms, kOne, kKept), 5.8);
}

TEST(StageTwoBound, IsThetaForAnEmptyStageTwo) {
  EXPECT_DOUBLE_EQ(stage_two_bound(kWeights, kNorms, kKept, kKept), 10.0 / 3);
  EXPECT_DOUBLE_EQ(attention_only_bound(kWeights, kNorms, kKept, kKept), 10.0 / 3);
}

TEST(StageTwoBound, DoesNotDependOnStageTwoAtHalfTheMass) {
  // sigma = 1/2: the coefficient 2 - 1/sigma is 0, so theta^ = C = 2 + 1/2 + 2 whatever stage two takes.
  const Numbers weights{0.5, 0.25, 0.25}, norms{4, 2, 8};
  for (const Positions& kept : {Positions{0}, Positions{0, 1}, Positions{0, 2}, Positions{0, 1, 2}}) {
    EXPECT_EQ(stage_two_bound(weights, norms, Positions{0}, kept), 4.5);
  }
}

// sigma = e^-710: 1/sigma overflows a double, but its factor is 0.
TEST(StageTwoBound, IsFiniteWhereStageOneNearlyUnderflows) {
  const double sigma = std::exp(-710);
  const Numbers weights{1, sigma}, norms{2, 0};
  EXPECT_EQ(stage_two_bound(weights, norms, Positions{1}, Positions{1}), 2);
  EXPECT_EQ(attention_only_bound(weights, norms, Positions{1}, Positions{1}), 2);
}

TEST(StageTwoBound, NeedsMassInStageOne) {
  const std::string refusal = "stage one's entries hold no attention mass: 1/mass is infinite";
  using Function = double (*)(VectorView, VectorView, Indices, Indices);
  for (const Function bound : {Function(stage_two_bound), Function(attention_only_bound)}) {
    EXPECT_EQ(message_of<NonFinite>([&] { bound(kWeights, kNorms, {}, kKept); }), refusal);
    EXPECT_EQ(message_of<NonFinite>([&] {
                bound(Numbers{0, 1}, Numbers{1, 1}, Positions{0}, Positions{0});
              }),
              refusal);
  }
}

TEST(Perturbation, NamesTheShapesThatDiffer) {
  const EvictionWeights eviction = eviction_weights(kWeights, kKept);
  EXPECT_EQ(message_of<ShapeMismatch>([&] {
              eviction_weights(Numbers{0, 0}, kWeights, kKept);
            }),
            "logits is 2 but attention weights is 3");
  EXPECT_EQ(message_of<ShapeMismatch>([&] {
              perturbation_bound(eviction, Numbers{1, 2});
            }),
            "attention weights is 3 but projected value norms is 2");
  EXPECT_EQ(message_of<ShapeMismatch>([&] { output_perturbation(eviction, Matrix(4, 2), Matrix(2, 2)); }),
            "attention weights is 3 but rows of values is 4");
  EXPECT_EQ(message_of<ShapeMismatch>([&] { output_perturbation(eviction, Matrix(3, 2), Matrix(5, 2)); }),
            "columns of a is 2 but rows of b is 5");
  EXPECT_EQ(message_of<ShapeMismatch>([] { rounding_scale(Matrix(1, 2), Matrix(3, 1)); }),
            "columns of values is 2 but rows of output_projection is 3");
}

TEST(Perturbation, OfStagesNamesTheShapesThatDiffer) {
  using Function = double (*)(VectorView, VectorView, Indices, Indices);
  for (const Function bound : {Function(stage_two_bound), Function(attention_only_bound)}) {
    EXPECT_THROW(bound(kWeights, Numbers{1, 2}, kOne, kKept), ShapeMismatch);
  }
}

TEST(RoundingScale, AddsUpWithoutSigns) {
  // The rows of |W| sum to 4 and 2. The value (1, -2) gives 1*4 + 2*2 = 8, as does its projection (1, -7);
  // (1, 2) with the projection (1, 1) gives 8, too.
  const RoundingScale scale = rounding_scale(matrix({{1, -2}, {1, 2}, {0, 0}}), matrix({{1, -3}, {0, 2}}));
  EXPECT_EQ(scale.absolute_projections, (Numbers{8, 8, 0}));
  EXPECT_EQ(scale.projection_sum, 6);
  EXPECT_EQ(scale.head_dim, 2);
  EXPECT_EQ(scale.model_dim, 2);
  EXPECT_TRUE(rounding_scale(Matrix(0, 2), Matrix(2, 2)).absolute_projections.empty());
  // 0 times infinity would be NaN, which bounds nothing.
  for (const double value : {0, 1}) {
    EXPECT_EQ(message_of<NonFinite>([&] {
                rounding_scale(matrix({{value, value}}), matrix({{1e308}, {-1e308}}));
              }),
              "the sum of absolute projected values[0] is inf");
  }
}

TEST(PerturbationRounding, IsTwiceGammaTimesTheAbsoluteTerms) {
  // |w| = (1/2, 1/2) times (4, 6) is 5; k = 2 + 1 + 1 + 8 = 12.
  const EvictionWeights eviction = eviction_weights(Numbers{0.5, 0.5}, Positions{0});
  const double ku = 12 * std::ldexp(1, -53);
  EXPECT_DOUBLE_EQ(perturbation_rounding(eviction, {1, 1, 2, {4, 6}}), 10 * ku / (1 - ku));
}

TEST(PerturbationRounding, CountsUnderflowWhereNothingElseIsLeft) {
  // 2 tokens times (1 + 2), and 2 products of head_dim 1 by model_dim 1: 8 units of 2^-1074.
  const EvictionWeights nothing = eviction_weights(Numbers{1, 0}, Positions{0});
  EXPECT_EQ(perturbation_rounding(nothing, {1, 1, 2, {4, 6}}), 8 * std::ldexp(1, -1074));
}

TEST(PerturbationRounding, NamesTheTokensThatTheScaleLacks) {
  const EvictionWeights eviction = eviction_weights(Numbers{0.5, 0.5}, Positions{0});
  EXPECT_EQ(message_of<ShapeMismatch>([&] {
              perturbation_rounding(eviction, {1, 1, 2, {4}});
            }),
            "2 eviction weights but a rounding scale of 1 tokens");
}

// The evicted weight e^-715.5 is subnormal, where a product's error is absolute: 2^-1075, whatever its size.
// L and theta multiply the weight by 0.25 and 0.9 in different orders.
TEST(PerturbationRounding, CoversUnderflow) {
  for (double logit = -700; logit > -745; logit -= 0.5) {
    const Numbers logits{0, logit};
    Matrix weights = matrix({logits});
    causal_softmax(weights.view(), 1);
    const EvictionWeights eviction = eviction_weights(logits, weights.row(0), Positions{0});
    const Matrix values = matrix({{0}, {0.25}}), projection = matrix({{0.9}});
    const double bound = perturbation_bound(eviction, projected_value_norms(values, projection, Norm::l1));
    const double slack = perturbation_rounding(eviction, rounding_scale(values, projection));
    EXPECT_LE(output_perturbation(eviction, values, projection), bound + slack) << logit;
  }
}

struct DrawnEviction {
  Numbers logits;
  Positions kept;
};

DrawnEviction drawn_eviction() {
  DrawnEviction drawn{numbers(*test::dyadics(1, 20, 30)), {}};
  const auto tokens = std::ssize(drawn.logits);
  test::Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  drawn.kept = random.subset(tokens, *test::integer(1, tokens));
  RC_CLASSIFY(drawn.kept.size() == drawn.logits.size(), "nothing evicted");
  RC_CLASSIFY(drawn.kept.size() == 1, "one kept");
  return drawn;
}

// The exact weights sum to e - e = 0; the computed ones to at most the sum of their bounds.
RC_GTEST_PROP(EvictionWeightsProperty, SumToZeroWithinTheirBounds, ()) {
  const DrawnEviction drawn = drawn_eviction();
  Matrix weights = matrix({drawn.logits});
  causal_softmax(weights.view(), weights.cols() - 1);
  const Row exact = oracle::eviction_weights(oracle::exactly(drawn.logits), drawn.kept);
  Real sum = 0, bound = oracle::oracle_precision();
  for (const double weight : eviction_weights(drawn.logits, weights.row(0), drawn.kept).weights)
    sum += weight;
  for (const Bounded& weight : exact) bound += weight.bound;
  RC_ASSERT(abs(sum) <= bound);
}

RC_GTEST_PROP(PerturbationBoundProperty, DominatesThePerturbation, ()) {
  const DrawnEviction drawn = drawn_eviction();
  const int64_t head_dim = *test::integer(1, 4), model_dim = *test::integer(1, 4);
  const auto drawn_matrix = [](int64_t rows, int64_t cols) {
    Matrix result(rows, cols);
    const Numbers entries = numbers(*test::dyadics(rows * cols, rows * cols, 4));
    std::ranges::copy(entries, result.data());
    return result;
  };
  const Matrix values = drawn_matrix(std::ssize(drawn.logits), head_dim);
  const Matrix projection = drawn_matrix(head_dim, model_dim);
  Matrix weights = matrix({drawn.logits});
  causal_softmax(weights.view(), weights.cols() - 1);
  const EvictionWeights eviction = eviction_weights(drawn.logits, weights.row(0), drawn.kept);
  const double bound = perturbation_bound(eviction, projected_value_norms(values, projection, Norm::l1));
  const double slack = perturbation_rounding(eviction, rounding_scale(values, projection));
  const double perturbation = output_perturbation(eviction, values, projection);
  RC_CLASSIFY(perturbation > 0, "a perturbation");
  RC_CLASSIFY(perturbation > 0 && bound - perturbation <= 1e-9 * bound, "theta reached");
  RC_ASSERT(perturbation <= bound + slack);
  // The slack must be small, or the inequality would prove nothing.
  RC_ASSERT(slack <= 1e-6 * bound || bound < 1e-6);
}

}  // namespace
}  // namespace kvbound::reference::perturbation_test
