#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/pseudo_inverse_errors.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::pseudo_inverse_errors_test {
namespace {

using test::matrix;

const Matrix kExact(3, 3);

std::vector<int64_t> ranks_of(const InverseErrors& errors) {
  std::vector<int64_t> ranks;
  for (const TruncatedInverse& inverse : errors.ranks) ranks.push_back(inverse.rank);
  return ranks;
}

TEST(PseudoInverseErrors, HaveOneRankWhereNoSingularValueIsNearTheLimit) {
  const Matrix queries = matrix({{4, 0, 0}, {0, 2, 0}, {0, 0, 1}});
  for (const auto& [rank, kept] : {std::pair(0.2, 3), {0.3, 2}, {0.6, 1}}) {
    const InverseErrors errors = pseudo_inverse_errors(queries, kExact, rank, single_precision());
    EXPECT_EQ(ranks_of(errors), std::vector<int64_t>{kept});
    EXPECT_LT(errors.ranks.front().error, 0.01);
    const double least = std::ldexp(4, 1 - kept);
    EXPECT_DOUBLE_EQ(errors.ranks.front().size, 1 / least);
    EXPECT_DOUBLE_EQ(errors.condition_number, 4 / least);
  }
}

TEST(PseudoInverseErrors, HaveBothRanksWhereOneSingularValueIsAtTheLimit) {
  for (const double off : {-1e-6, 1e-6}) {
    const Matrix queries = matrix({{4, 0, 0}, {0, 2 + off, 0}, {0, 0, 0.5}});
    const InverseErrors errors = pseudo_inverse_errors(queries, kExact, 0.5, single_precision());
    EXPECT_EQ(ranks_of(errors), (off < 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2, 1}));
    for (const TruncatedInverse& inverse : errors.ranks) EXPECT_LT(inverse.error, 0.01);
    EXPECT_EQ(ranks_of(pseudo_inverse_errors(queries, kExact, 0.5, double_precision())).size(), 1u);
  }
}

TEST(PseudoInverseErrors, HaveNoBoundOfARankBetweenEqualSingularValues) {
  const Matrix queries = matrix({{4, 0, 0}, {0, 2, 0}, {0, 0, 2}});
  const InverseErrors errors = pseudo_inverse_errors(queries, kExact, 0.5, single_precision());
  EXPECT_EQ(ranks_of(errors), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_LT(errors.ranks[0].error, 0.01);
  EXPECT_LT(errors.ranks[1].error, 0.01);
  EXPECT_TRUE(std::isinf(errors.ranks[2].error));
}

TEST(PseudoInverseErrors, HaveNoBoundWhereASingularValueIsLostInErrors) {
  const Matrix queries = matrix({{4, 0, 0}, {0, 1e-6, 0}, {0, 0, 0}});
  const InverseErrors errors = pseudo_inverse_errors(queries, kExact, 0, single_precision());
  EXPECT_TRUE(std::isinf(errors.ranks.front().error));
  EXPECT_DOUBLE_EQ(errors.condition_number, 4e6);
}

TEST(PseudoInverseErrors, CountTheErrorsOfQueries) {
  const Matrix queries = matrix({{4, 0, 0}, {0, 2.1, 0}, {0, 0, 0.5}});
  Matrix errors = kExact;
  EXPECT_EQ(ranks_of(pseudo_inverse_errors(queries, errors, 0.5, double_precision())).size(), 1u);
  errors(2, 2) = 0.06;
  EXPECT_EQ(ranks_of(pseudo_inverse_errors(queries, errors, 0.5, double_precision())).size(), 2u);
}

TEST(PseudoInverseErrors, AreNoneOfZeros) {
  const InverseErrors errors = pseudo_inverse_errors(Matrix(3, 3), kExact, 0.3, single_precision());
  EXPECT_EQ(ranks_of(errors), std::vector<int64_t>{0});
  EXPECT_EQ(errors.ranks.front().error, 0);
  EXPECT_EQ(errors.condition_number, 0);
  Matrix stored = kExact;
  stored(0, 0) = 1e-9;
  EXPECT_TRUE(
      std::isinf(pseudo_inverse_errors(Matrix(3, 3), stored, 0.3, single_precision()).ranks.front().error));
}

}  // namespace
}  // namespace kvbound::reference::pseudo_inverse_errors_test
