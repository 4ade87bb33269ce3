#include <algorithm>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/eviction/selection.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::selection_test {
namespace {

using test::message_of;
using Indices = std::vector<int64_t>;

// A full stable sort: equal scores stay in index order.
Indices ranked_by_sorting(const std::vector<double>& scores) {
  Indices order(scores.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](int64_t i) { return scores[i]; });
  return order;
}

TEST(RankTop, GivesTheBestFirst) {
  EXPECT_EQ(rank_top(std::vector{1.0, 4.0, 2.0, 3.0}, 3), (Indices{1, 3, 2}));
}

TEST(SelectTop, GivesTheSameAscending) {
  EXPECT_EQ(select_top(std::vector{1.0, 4.0, 2.0, 3.0}, 3), (Indices{1, 2, 3}));
  EXPECT_EQ(select_top(std::vector{4.0, 1.0, 2.0, 9.0}, 2), (Indices{0, 3}));
}

TEST(RankTop, LetsTheSmallerIndexWinTies) {
  EXPECT_EQ(rank_top(std::vector{5.0, 7.0, 5.0, 7.0, 5.0}, 3), (Indices{1, 3, 0}));
  EXPECT_EQ(rank_top(std::vector{2.0, 2.0, 2.0}, 2), (Indices{0, 1}));
  EXPECT_EQ(rank_top(std::vector{0.0, -0.0, 0.0}, 2), (Indices{0, 1})) << "the zeros are equal";
  EXPECT_EQ(rank_top(std::vector{-0.0, 0.0}, 1), Indices{0});
}

TEST(RankTop, TakesNothingAndEverything) {
  EXPECT_EQ(rank_top(std::vector{1.0, 2.0}, 0), Indices{});
  EXPECT_EQ(rank_top({}, 0), Indices{});
  EXPECT_EQ(rank_top(std::vector{1.0, 3.0, 2.0}, 3), (Indices{1, 2, 0}));
  EXPECT_EQ(select_top(std::vector{1.0, 3.0, 2.0}, 3), (Indices{0, 1, 2}));
}

TEST(RankTop, RanksInfinitiesLikeAnyScore) {
  EXPECT_EQ(rank_top(std::vector{-kInfinity, kInfinity, 0.0, kInfinity}, 4), (Indices{1, 3, 2, 0}));
}

TEST(RankTop, NamesWhatItRefuses) {
  const auto refused = [](std::vector<double> scores, int64_t k) {
    return message_of<ShapeMismatch>([&] { rank_top(scores, k); });
  };
  EXPECT_EQ(refused({1, 2}, 3), "cannot select 3 of 2 entries");
  EXPECT_EQ(refused({1, 2}, -1), "cannot select -1 of 2 entries");
  EXPECT_EQ(refused({}, 1), "cannot select 1 of 0 entries");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message_of<NonFinite>([&] { select_top(std::vector{1.0, 2.0, nan}, 1); }), "scores[2] is NaN");
  EXPECT_EQ(message_of<NonFinite>([&] { select_top(std::vector{nan}, 0); }), "scores[0] is NaN");
}

RC_GTEST_PROP(RankTopProperty, AgreesWithAFullStableSort, ()) {
  const std::vector<double> scores = numbers(*test::dyadics(0, 60, 4));
  const int64_t k = *test::integer(0, std::ssize(scores));
  const auto tied = static_cast<size_t>(std::ranges::count(scores, scores.empty() ? 0 : scores.front()));
  RC_CLASSIFY(tied > 1, "ties");
  Indices expected = ranked_by_sorting(scores);
  expected.resize(k);
  RC_ASSERT(rank_top(scores, k) == expected);
  std::ranges::sort(expected);
  RC_ASSERT(select_top(scores, k) == expected);
}

// Permuting the entries permutes the selection. With ties only the selected scores are the same, since the
// smaller index then belongs to another entry.
RC_GTEST_PROP(SelectTopProperty, FollowsAPermutationOfTheEntries, ()) {
  const std::vector<double> scores = numbers(*test::dyadics(1, 40, 1000));
  Indices places(scores.size());
  std::iota(places.begin(), places.end(), int64_t{0});
  test::Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  for (size_t i = places.size(); i > 1; --i) {
    std::swap(places[i - 1], places[random.index(static_cast<int64_t>(i))]);
  }
  std::vector<double> permuted;
  for (const int64_t place : places) permuted.push_back(scores[place]);
  const int64_t k = *test::integer(0, std::ssize(scores));
  Indices original = rank_top(scores, k), back;
  for (const int64_t i : rank_top(permuted, k)) back.push_back(places[i]);
  std::vector<double> sorted = scores;
  std::ranges::sort(sorted);
  const bool distinct = std::ranges::adjacent_find(sorted) == sorted.end();
  RC_CLASSIFY(distinct, "distinct scores");
  if (distinct) RC_ASSERT(back == original);
  for (size_t i = 0; i < back.size(); ++i) {
    RC_ASSERT(scores[back[i]] == scores[original[i]]);
  }
}

}  // namespace
}  // namespace kvbound::reference::selection_test
