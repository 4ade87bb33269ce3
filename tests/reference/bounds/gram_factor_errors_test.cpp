// The bound of a norm by the factor of a Gram matrix against roundings that go as far as the model allows.
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/numerics/gram_factor.hpp>

#include "directed.hpp"

namespace kvbound::test::gram_factor_errors_test {
namespace {

using namespace reference;

constexpr double kUnit = 0x1p-24, kShare = 0x1p-10;

// A value (1, c) and W^O's rows (1, 0) and (-1, r): for r = 0 an L2 norm of 1 - c, from terms that add
// up to 1 + c, and a singular Gram matrix.
struct Pair {
  double c = 0.5, r = 0;

  double size() const { return 1 + c * std::hypot(1, r); }
  // moved  what c is off by where the implementation has it
  double bound(const Arithmetic& arithmetic, double moved = 0) const {
    const LayerShape shape{1, 1, 2, 2};
    Tensor value(1, 1, 2), errors(1, 1, 2);
    value.numbers()[0] = 1;
    value.numbers()[1] = c;
    errors.numbers()[1] = moved;
    Matrix projection(2, 2);
    projection(0, 0) = 1;
    projection(1, 0) = -1;
    projection(1, 1) = r;
    const Matrix norms = projected_value_norms(shape, value, projection, Norm::l2);
    const TensorView value_errors = moved > 0 ? errors.view() : TensorView();
    return projected_value_norm_errors(shape, value, projection, Norm::l2, norms, arithmetic, value_errors)(
        0, 0);
  }
};

Arithmetic by_factor(double tensor_sums = 0) {
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.gram_factor = true;
  arithmetic.tensor_sums = tensor_sums;
  return arithmetic;
}

TEST(GramFactorErrors, OfSumsOfProductsAreAShareOfAllTerms) {
  expect_tight(kShare * Pair().size(), Pair().bound(by_factor(kShare)), 1.001, "tensor cores");
  Arithmetic one = by_factor(), none = by_factor();
  one.unit = none.unit = kUnit;
  one.product_depth = 1;
  none.product_depth = 0;
  expect_tight(kUnit * Pair().size(), Pair().bound(one) - Pair().bound(none), 1.001, "additions");
}

// L's rows are (1, 0) and (-1, 1): of a value (1, c) terms add up to (1 + c, c).
TEST(GramFactorErrors, CountTheFactorsNumbersWhereTheyAreCertain) {
  const Pair pair{.c = 1, .r = 1};
  expect_tight(kShare * std::hypot(2, 1), pair.bound(by_factor(kShare)), 1.001);
  Arithmetic stored = by_factor(kShare);
  stored.input = 0x1p-40;  // of rounded inputs nobody knows the factor
  expect_tight(kShare * pair.size(), pair.bound(stored), 1.001);
}

TEST(GramFactorErrors, OfTheFactorMayBeAllOfANormThatCancels) {
  const double off = gram_factor_error(2, 2);
  const Pair nothing{.c = 1}, half{.c = 0.5};
  expect_tight(std::sqrt(off) * nothing.size(), nothing.bound(by_factor()), 1.001);
  Arithmetic projected = by_factor();
  projected.gram_factor = false;
  expect_tight(off * std::pow(half.size(), 2) / 0.5, half.bound(by_factor()) - half.bound(projected), 1.001);
}

TEST(GramFactorErrors, OfAValueThatIsOffMoveItsNorm) {
  const double moved = 0.25;
  expect_tight(moved, Pair{.c = 1}.bound(by_factor(), moved), 1.001);
  expect_tight(moved + kShare * (Pair().size() + moved), Pair().bound(by_factor(kShare), moved), 1.001);
}

TEST(GramFactorErrors, CountWhatIsLostBelowTheNormalRange) {
  Arithmetic arithmetic = by_factor(), projected = by_factor();
  arithmetic.smallest = projected.smallest = 0x1p-20;
  projected.gram_factor = false;
  const double lost = std::sqrt(2) * (2 * 1.5 + 8 * 2) * 0x1p-20;
  expect_tight(lost, Pair().bound(arithmetic) - Pair().bound(projected), 1.001);
}

}  // namespace
}  // namespace kvbound::test::gram_factor_errors_test
