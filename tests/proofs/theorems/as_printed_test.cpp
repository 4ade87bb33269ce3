#include <gtest/gtest.h>

#include <kvbound/proofs/theorems/as_printed.hpp>
#include <kvbound/reference/core/error.hpp>

#include "support/random_layer.hpp"

namespace kvbound::proofs::as_printed_test {
namespace {

using test::matrix;
using test::message_of;
using Positions = std::vector<int64_t>;
using Numbers = std::vector<double>;

// By hand: A = (5/8, 1/8, 1/4), ||V|| = (8, 16, 4), kept {0, 1}, of which {0} is stage one.
const Numbers kWeights{0.625, 0.125, 0.25};
const Numbers kNorms{8, 16, 4};
const Positions kKept{0, 1}, kOne{0};

TEST(OutputPerturbationAsPrinted, IsTheDistanceOfTheOutputs) {
  // A = (1/2, 1/4, 1/4), kept {0}; V W = 4, 2, -8. o = 2 + 1/2 - 2 = 1/2, o^ = 4: L = 7/2.
  const Matrix values = matrix({{2}, {1}, {-4}}), projection = matrix({{2}});
  EXPECT_EQ(output_perturbation_as_printed(Numbers{0.5, 0.25, 0.25}, values, projection, Positions{0}), 3.5);
}

TEST(BoundsAsPrinted, GrowFromThetaToStageTwosToAttentions) {
  // C = 5 + 2 + 1 = 8, S = 7, Sigma = 3/4: theta = 8 - (2 - 4/3) 7 = 10/3.
  EXPECT_DOUBLE_EQ(perturbation_bound_as_printed(kWeights, kNorms, kKept), 10.0 / 3);
  // sigma = 5/8, 2 - 8/5 = 2/5: C' = 8 - 2/5 * 5 = 6, theta^ = 6 - 2/5 * 2 = 26/5.
  EXPECT_DOUBLE_EQ(stage_two_bound_as_printed(kWeights, kNorms, kOne, kKept), 5.2);
  // M = 4: theta^_relax = 6 - 4 * 2/5 * 1/8 = 29/5.
  EXPECT_DOUBLE_EQ(attention_only_bound_as_printed(kWeights, kNorms, kOne, kKept), 5.8);
}

TEST(BoundsAsPrinted, NeedAttentionMass) {
  EXPECT_EQ(message_of<NonFinite>([] { perturbation_bound_as_printed(kWeights, kNorms, {}); }),
            "the kept entries hold no attention mass: 1/mass is infinite");
  using Function = double (*)(VectorView, VectorView, Indices, Indices);
  for (const Function bound : {stage_two_bound_as_printed, attention_only_bound_as_printed}) {
    const std::string refusal = "stage one's entries hold no attention mass: 1/mass is infinite";
    EXPECT_EQ(message_of<NonFinite>([&] { bound(kWeights, kNorms, {}, kKept); }), refusal);
    EXPECT_EQ(message_of<NonFinite>([&] {
                bound(Numbers{0, 1}, Numbers{1, 1}, Positions{0}, Positions{0});
              }),
              refusal);
  }
}

TEST(BoundsAsPrinted, RefuseShapesThatDiffer) {
  EXPECT_THROW(perturbation_bound_as_printed(kWeights, Numbers{1, 2}, kKept), ShapeMismatch);
  EXPECT_THROW(stage_two_bound_as_printed(kWeights, Numbers{1, 2}, kOne, kKept), ShapeMismatch);
  EXPECT_THROW(attention_only_bound_as_printed(kWeights, Numbers{1, 2}, kOne, kKept), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::proofs::as_printed_test
