#include <gtest/gtest.h>

#include <kvbound/reference/eviction/head_cache.hpp>

namespace kvbound::reference::head_cache_test {
namespace {

using Positions = std::vector<int64_t>;

TEST(HeadCache, GivesThePlaceOfARemovedEntryToTheLast) {
  HeadCache cache;
  for (const double j : {0.0, 1.0, 2.0, 3.0}) {
    cache.append(static_cast<int64_t>(10 * j), std::vector{j, -j}, std::vector{j + 0.5});
  }
  cache.remove(1);
  EXPECT_EQ(cache.positions, (Positions{0, 30, 20}));
  EXPECT_EQ(cache.keys(1, 1), -3);
  EXPECT_EQ(cache.values(1, 0), 3.5);
  cache.remove(2);
  EXPECT_EQ(cache.positions, (Positions{0, 30}));
  cache.append(40, std::vector{4.0, -4.0}, std::vector{4.5});
  EXPECT_EQ(cache.positions, (Positions{0, 30, 40}));
  EXPECT_EQ(cache.keys(2, 0), 4);
  for (int i = 0; i < 3; ++i) cache.remove(0);
  EXPECT_EQ(cache.entries(), 0);
}

TEST(HeadCache, FindsEntriesByPosition) {
  HeadCache cache;
  EXPECT_EQ(cache.find(0), -1);
  for (const int64_t position : {7, 2, 9}) cache.append(position, std::vector{1.0}, std::vector{2.0});
  EXPECT_EQ(cache.find(2), 1);
  cache.remove(0);
  EXPECT_EQ(cache.find(9), 0);
  EXPECT_EQ(cache.find(7), -1);
}

TEST(HeadCache, GivesANewEntryOneVoteWhereEntriesVote) {
  HeadCache cache;
  cache.append(0, std::vector{1.0}, std::vector{2.0});
  EXPECT_TRUE(cache.votes.empty());
  cache.votes = {3};
  cache.append(1, std::vector{1.0}, std::vector{2.0});
  EXPECT_EQ(cache.votes, (std::vector<double>{3, 1}));
  cache.remove(0);
  EXPECT_EQ(cache.votes, (std::vector<double>{1}));
}

}  // namespace
}  // namespace kvbound::reference::head_cache_test
