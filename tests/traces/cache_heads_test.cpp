#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/traces/cache_heads.hpp>

namespace kvbound::traces::cache_heads_test {
namespace {

using testing::ElementsAre;

constexpr LayerShape kShape{6, 2, 1, 5};

TEST(CacheHeads, HaveNames) {
  for (const CacheHeads heads : {CacheHeads::kv, CacheHeads::query})
    EXPECT_EQ(cache_heads(name(heads)), heads);
  EXPECT_EQ(name(CacheHeads::query), "query");
  EXPECT_EQ(cache_heads("Query"), std::nullopt);
  EXPECT_EQ(cache_heads(""), std::nullopt);
}

TEST(CacheHeads, AreTheKvHeadsOfAShape) {
  EXPECT_EQ(with_caches_of(kShape, CacheHeads::kv), kShape);
  EXPECT_EQ(with_caches_of(kShape, CacheHeads::query), (LayerShape{6, 6, 1, 5}));
}

TEST(CacheHeads, OfQueryHeadsHaveWhatTheirKvHeadHas) {
  Tensor keys(2, 2, 1);
  for (int64_t i = 0; i < 4; ++i) keys.data()[i] = static_cast<double>(i);
  const Tensor all = per_query_head(kShape, keys);
  EXPECT_EQ(all.view().slices, 6);
  EXPECT_EQ(all.view().rows, 2);
  EXPECT_EQ(all.view().cols, 1);
  EXPECT_THAT(all.numbers(), ElementsAre(0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3));
}

}  // namespace
}  // namespace kvbound::traces::cache_heads_test
