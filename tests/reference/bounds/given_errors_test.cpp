#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/given_errors.hpp>

#include "support/random_layer.hpp"

namespace kvbound::test::given_errors_test {
namespace {

using namespace reference;

TEST(GivenErrors, AreNoneOfNumbersThatThePrecisionHolds) {
  const Matrix numbers = matrix({{0, -0.0, 1, -3, 0x1p-126, 0x1.fffffep127, 1 + 0x1p-23, -0x1p-100}});
  for (const Arithmetic& arithmetic : {single_precision(), double_precision()}) {
    const Matrix errors = given_errors(numbers, arithmetic);
    for (const double error : errors.numbers()) EXPECT_EQ(error, 0);
  }
  const Matrix exact = given_errors(matrix({{0.1, 1e-300}}), double_precision());
  for (const double error : exact.numbers()) EXPECT_EQ(error, 0);
}

TEST(GivenErrors, HoldForRoundingToSinglePrecisionWithAndWithoutFlushing) {
  Random random(5);
  double most = 0;  // of the bound that is used
  for (int i = 0; i < 2000; ++i) {
    const double number = random.uniform(-2, 2) * std::ldexp(1, static_cast<int>(random.index(280)) - 160);
    const double error = given_errors(matrix({{number}}), single_precision())(0, 0);
    const double off = std::abs(static_cast<double>(static_cast<float>(number)) - number);
    EXPECT_LE(off, error) << number;
    if (std::abs(number) < 0x1p-126) {
      EXPECT_LE(std::abs(number), error);
    } else if (error > 0) {
      most = std::max(most, off / error);
    }
  }
  EXPECT_GT(most, 0.9) << "the bound is reached";
}

}  // namespace
}  // namespace kvbound::test::given_errors_test
