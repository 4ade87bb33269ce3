// The bound of a root by a Gram matrix against roundings that go as far as the model allows.
#include <algorithm>
#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>

#include "directed.hpp"

namespace kvbound::test::gram_root_errors_test {
namespace {

using namespace reference;

constexpr double kUnit = 0x1p-24;

// A value (1, c) and W^O's only column (1, -1): an L2 norm of 1 - c, from terms that
// add up to (1 + c)^2 in all.
struct Difference {
  double c;

  double norm() const { return 1 - c; }
  double size() const { return 1 + c; }
  // moved  what c is off by where the implementation has it
  double bound(const Arithmetic& arithmetic, Norm in = Norm::l2, double moved = 0) const {
    const LayerShape shape{1, 1, 2, 1};
    Tensor value(1, 1, 2), errors(1, 1, 2);
    errors.numbers()[1] = moved;
    value.numbers()[0] = 1;
    value.numbers()[1] = c;
    Matrix projection(2, 1), norms(1, 1);
    projection(0, 0) = 1;
    projection(1, 0) = -1;
    norms(0, 0) = norm();
    const TensorView value_errors = moved > 0 ? errors.view() : TensorView();
    return projected_value_norm_errors(shape, value, projection, in, norms, arithmetic, value_errors)(0, 0);
  }
};

Arithmetic by_gram(double tensor_lengths) {
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.gram_share = 0x1p-10;
  arithmetic.tensor_lengths = tensor_lengths;
  return arithmetic;
}

TEST(GramRootErrors, OfASquareByAGramMatrixMovesItsRoot) {
  const Difference half{0.5};
  const auto attained = [&](double share) {
    const double square = half.norm() * half.norm() - share * half.size() * half.size();
    return half.norm() - std::sqrt(square);
  };
  const double share = 0x1p-8;
  expect_tight(attained(share), half.bound(by_gram(share)), 1.001, "lengths");
  Arithmetic five = by_gram(0), one = by_gram(0);
  five.unit = one.unit = kUnit;
  five.length_depth = 5;
  one.length_depth = 1;
  expect_tight(attained(7 * kUnit) - attained(3 * kUnit), half.bound(five) - half.bound(one), 1.01, "unit");
}

TEST(GramRootErrors, OfAValueThatIsSurelyNotProjectedIsAllOfItsNorms) {
  const Difference half{0.5};  // its square is a tenth of |v|^2 tr G
  const double share = 0x1p-8;
  Arithmetic projected = by_gram(share);
  projected.tensor_sums = 0x1p-4;
  expect_tight(half.bound(by_gram(share)), half.bound(projected), 1);
  for (const double gram_share : {0.06, 0.15}) {  // of which it has less than twice as much
    projected.gram_share = gram_share;
    EXPECT_GT(half.bound(projected), projected.tensor_sums * half.size()) << gram_share;
  }
}

TEST(GramRootErrors, OfValuesOfWhichNoRootIsTakenCountsWhatProjectingThemDoes) {
  for (const auto& [of_value, of_projection] : {std::pair(0x1p-17, 1.0), {1.0, 0x1p-9}, {0x1p61, 1.0}}) {
    const LayerShape shape{1, 1, 1, 1};
    Tensor value(1, 1, 1);
    value.numbers()[0] = of_value;
    Matrix projection(1, 1);
    projection(0, 0) = of_projection;
    const Matrix norms = projected_value_norms(shape, value, projection, Norm::l2);
    Arithmetic arithmetic = by_gram(0);
    arithmetic.tensor_sums = 0x1p-4;
    EXPECT_GE(projected_value_norm_errors(shape, value, projection, Norm::l2, norms, arithmetic)(0, 0),
              0x1p-4 * norms(0, 0));
  }
}

// A value that is off by much may have a square that is large enough, though the reference's has not.
TEST(GramRootErrors, OfAValueThatIsOffMovesItsNormAndMayTakeItsRoot) {
  const Difference nothing{1}, half{0.5};
  const double moved = 0.25, share = 0x1p-20;
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    expect_tight(moved, half.bound(nothing_rounds(), norm, moved), 1.001, "no Gram matrix");
  }
  const double root = moved - std::sqrt(moved * moved - share * std::pow(nothing.size() + moved, 2));
  expect_tight(moved + root, nothing.bound(by_gram(share), Norm::l2, moved), 1.01, "root");
  EXPECT_GT(nothing.bound(by_gram(share), Norm::l2, moved), 1.001 * moved);
}

// W^O's rows are orthogonal, so that of S^2 = 4 only |v||G||v| = 2 counts; but of rounded
// inputs nobody knows that.
TEST(GramRootErrors, OfAGramMatrixOfRoundedInputsIsAShareOfAllTerms) {
  const LayerShape shape{1, 1, 2, 2};
  Tensor value(1, 1, 2);
  std::ranges::fill(value.numbers(), 1);
  Matrix projection(2, 2);
  projection(0, 0) = projection(1, 1) = 1;
  const Matrix norms = projected_value_norms(shape, value, projection, Norm::l2);
  const auto root_error = [&](double input) {
    Arithmetic arithmetic = by_gram(0x1p-8), projected = by_gram(0);
    arithmetic.input = projected.input = input;
    projected.gram_share = 0;
    return projected_value_norm_errors(shape, value, projection, Norm::l2, norms, arithmetic)(0, 0) -
           projected_value_norm_errors(shape, value, projection, Norm::l2, norms, projected)(0, 0);
  };
  expect_tight(std::sqrt(2) - std::sqrt(2 - 0x1p-7), root_error(0), 1.001);
  EXPECT_GT(root_error(0x1p-30), 1.99 * root_error(0));
}

TEST(GramRootErrors, OfASquareByAGramMatrixMayBeAllOfASmallNorm) {
  const Difference nothing{1};
  const double share = 0x1p-10;
  expect_tight(std::sqrt(share) * nothing.size(), nothing.bound(by_gram(share)), 1.001);
}

TEST(GramRootErrors, OfAGramMatrixCountsOnlyWhereItGivesTheNorm) {
  const Difference nothing{1}, half{0.5};
  const double share =
      0x1p-20;  // of terms that add up to 4, where the least square is 2^-10 of |v|^2 tr G = 4
  EXPECT_LT(nothing.bound(by_gram(share)), 1e-9);
  Arithmetic floored = by_gram(share);
  floored.input_floor = 0x1p-60;  // stored inputs might have any small square
  expect_tight(std::sqrt(share) * nothing.size(), nothing.bound(floored), 1.001);
  Arithmetic near = by_gram(share);
  near.gram_share =
      0.15;  // of |v|^2 tr G = 2.5; the square is 0.25, and rounding might make either twice the other
  EXPECT_GT(half.bound(near), 1e-7);
  near.gram_share = 0.25;
  EXPECT_LT(half.bound(near), 1e-9);
  Arithmetic projected = by_gram(share);
  projected.gram_share = 0;
  EXPECT_LT(half.bound(projected), 1e-9);
  EXPECT_GT(half.bound(by_gram(share)), 1e-7);
  EXPECT_LT(half.bound(by_gram(share), Norm::l1), 1e-9);
}

}  // namespace
}  // namespace kvbound::test::gram_root_errors_test
