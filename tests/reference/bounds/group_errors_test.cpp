#include <gtest/gtest.h>

#include <kvbound/reference/bounds/group_errors.hpp>

#include "directed.hpp"

namespace kvbound::test::group_errors_test {
namespace {

using namespace reference;

TEST(GroupErrors, AreThoseOfTheReduction) {
  // Two groups of four heads, one entry: the errors of a group's heads all have the same direction.
  const Matrix scores = filled(8, 1, 1), errors = filled(8, 1, 0.125);
  const Matrix mean = group_errors(scores, errors, 4, GroupReduction::mean, nothing_rounds());
  const Matrix sum = group_errors(scores, errors, 4, GroupReduction::sum, nothing_rounds());
  ASSERT_EQ(mean.rows(), 2);
  ASSERT_EQ(sum.rows(), 2);
  for (const int64_t group : {0, 1}) {
    expect_tight(0.125, mean(group, 0), 1.0001, "mean");
    expect_tight(0.5, sum(group, 0), 1.0001, "sum");
  }
}

}  // namespace
}  // namespace kvbound::test::group_errors_test
