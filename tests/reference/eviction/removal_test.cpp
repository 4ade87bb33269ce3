#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/eviction/removal.hpp>

#include "support/change_oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::removal_test {
namespace {

using oracle::Measured;
using oracle::near;
using test::matrix;
using test::message_of;
using test::Random;
using Numbers = std::vector<double>;
using Positions = std::vector<int64_t>;

// A = (1/8, 2/8, 5/8), v = (8, 0), (0, 16), (8, 8): o = (6, 9).
const Numbers kLogits{0, std::log(2), std::log(5)};
const Matrix kValues = matrix({{8, 0}, {0, 16}, {8, 8}});

void expect_change(const Positions& removed, const Numbers& expected) {
  const Numbers change = removal_change(kLogits, kValues, removed);
  ASSERT_EQ(change.size(), expected.size());
  for (size_t c = 0; c < change.size(); ++c) EXPECT_NEAR(change[c], expected[c], 1e-14) << c;
}

TEST(RemovalChange, IsTheOutputWithoutThemLessTheOutput) {
  expect_change({0}, {40.0 / 7 - 6, 72.0 / 7 - 9});  // o' = (2 (0, 16) + 5 (8, 8)) / 7
  expect_change({2}, {8.0 / 3 - 6, 32.0 / 3 - 9});   // o' = ((8, 0) + 2 (0, 16)) / 3
  expect_change({0, 1}, {2, -1});                    // o' = (8, 8)
  expect_change({1, 2}, {2, -9});                    // o' = (8, 0)
}

TEST(RemovalChange, OfNothingIsZero) {
  EXPECT_EQ(removal_change(kLogits, kValues, {}), (Numbers{0, 0}));
  EXPECT_EQ(removal_change(Numbers{3}, matrix({{5}}), {}), Numbers{0});
  EXPECT_EQ(removal_change({}, Matrix(0, 2), {}), (Numbers{0, 0})) << "no entries";
}

TEST(RemovalChange, OfAllHasNoOutputToCompare) {
  const std::string refusal = "all entries are removed: there is no output without them";
  EXPECT_EQ(message_of<NonFinite>([] { removal_change(kLogits, kValues, Positions{0, 1, 2}); }), refusal);
  EXPECT_EQ(message_of<NonFinite>([] { removal_change(Numbers{1}, matrix({{1}}), Positions{0}); }), refusal);
}

TEST(RemovalChange, NamesWhatItRefuses) {
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              removal_change(Numbers{1, 2}, kValues, Positions{0});
            }),
            "logits is 2 but rows of values is 3");
  const auto refused = [](const Positions& removed) {
    return message_of<ShapeMismatch>([&] { removal_change(kLogits, kValues, removed); });
  };
  const std::string expected = "; expected ascending indices of 3 entries";
  EXPECT_EQ(refused({3}), "removed[0] is 3" + expected);
  EXPECT_EQ(refused({-1, 0}), "removed[0] is -1" + expected);
  EXPECT_EQ(refused({1, 0}), "removed[1] is 0" + expected);
  EXPECT_EQ(refused({1, 1}), "removed[1] is 1" + expected);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(removal_change(Numbers{0, bad, 1}, kValues, Positions{0}), NonFinite) << bad;
  }
}

TEST(RemovalChange, OfOneEntryIsItsExactScore) {
  Random random(1);
  const Matrix keys = random.matrix(9, 4, 2), values = random.matrix(9, 4), query = random.matrix(1, 4);
  const std::vector<ValueSpace> spaces(1);
  const Matrix norms = matrix({spaces[0].squared_norms(values)});
  const Matrix scores = scored_attention(Change::exact, query, {keys, values, norms, spaces}, 1).scores;
  Numbers logits(9);
  for (int64_t j = 0; j < 9; ++j) {
    for (int64_t c = 0; c < 4; ++c) logits[j] += query(0, c) * keys(j, c);
  }
  for (int64_t j = 0; j < 9; ++j) {
    const double squared = ValueSpace().squared_norm(removal_change(logits, values, Positions{j}));
    EXPECT_NEAR(squared, scores(0, j), 1e-12 * squared);
  }
}

// || o' - o || is |A_E| || o_rest - o_E ||; the removed entries have all weight but
// e^-gap, for gaps of any size.
TEST(RemovalChangeOracle, IsMetWhereNearlyAllAttentionLeaves) {
  Random random(2);
  for (const double gap : {0.0, 2.0, 38.0, 60.0, 800.0, 2e4}) {
    for (const double side : {1.0, -1.0}) {
      Numbers logits(10);
      for (size_t j = 0; j < logits.size(); ++j) logits[j] = random.normal() + (j % 3 == 0 ? side * gap : 0);
      const Matrix values = random.matrix(10, 3);
      const Positions removed{0, 3, 6, 9};
      const Numbers change = removal_change(logits, values, removed);
      const auto expected = oracle::removal({logits.begin(), logits.end()}, values, removed);
      for (size_t c = 0; c < change.size(); ++c) {
        EXPECT_TRUE(near(change[c], expected[c])) << "gap " << side * gap;
      }
    }
  }
}

RC_GTEST_PROP(RemovalChangeProperty, IsDeletionForSetsOfAnySize, ()) {
  const Numbers logits = numbers(*test::dyadics(1, 12, 60));
  const auto entries = std::ssize(logits);
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const Positions removed = random.subset(entries, *test::integer(0, entries - 1));
  const Matrix values = random.matrix(entries, *test::integer(1, 4));
  RC_CLASSIFY(removed.empty(), "nothing removed");
  RC_CLASSIFY(std::ssize(removed) == entries - 1, "one left");
  const Numbers change = removal_change(logits, values, removed);
  const auto expected = oracle::removal({logits.begin(), logits.end()}, values, removed);
  for (size_t c = 0; c < change.size(); ++c) RC_ASSERT(bool(near(change[c], expected[c])));
}

// The printed form (1 / (1 - A_E)) sum_E A_j (o - v_j), for logits at which it does not cancel.
RC_GTEST_PROP(RemovalChangeProperty, IsThePrintedForm, ()) {
  const Numbers logits = numbers(*test::dyadics(2, 10, 2));
  const auto entries = std::ssize(logits);
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const Positions removed = random.subset(entries, *test::integer(1, entries - 1));
  const Matrix values = random.matrix(entries, 2);
  const oracle::Reals weights = oracle::softmax(oracle::Reals(logits.begin(), logits.end()));
  oracle::Real left = 1, output[2];
  for (const int64_t j : removed) left -= weights[j];
  for (int64_t j = 0; j < entries; ++j) {
    for (int64_t c = 0; c < 2; ++c) output[c] += weights[j] * values(j, c);
  }
  const Numbers change = removal_change(logits, values, removed);
  for (int64_t c = 0; c < 2; ++c) {
    Measured expected;
    for (const int64_t j : removed) {
      const oracle::Real term = weights[j] * (output[c] - values(j, c)) / left;
      expected += {term, abs(term)};
    }
    RC_ASSERT(bool(near(change[c], expected)));
  }
}

}  // namespace
}  // namespace kvbound::reference::removal_test
