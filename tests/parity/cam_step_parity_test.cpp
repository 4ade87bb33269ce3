// CaM in a decode step on the device: the reference's draws, and values within the rounding of their sums.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/cam.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/merging/cam.hpp>

#include "cam_draws.hpp"
#include "clusters.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

using reference::single_precision;
using reference::sum_rounding;

// An evicted entry in caches whose positions do not ascend.
struct StepCase {
  int64_t entries = 40;
  int64_t neighbours = 3;
  int64_t seed = 1;
  Weights weights = Weights::random;
  int64_t head_dim = 10;
  int64_t kv_heads = 12;
  int64_t largest = 10000;  // position

  int64_t capacity() const { return entries + 2; }
  int64_t stride() const { return std::min(neighbours, capacity()) + 2; }
};

template <class T>
struct Step {
  StepCase c;
  Tensor values;
  Matrix attention;
  Positions counts, free, positions;

  explicit Step(const StepCase& given)
      : c(given),
        values(rounded<T>(random_tensor(1, c.kv_heads, c.capacity(), c.head_dim))),
        attention(c.kv_heads, c.capacity()),
        positions(c.kv_heads * c.capacity(), -1) {
    const Tensor random = random_tensor(2, 2, c.kv_heads, c.capacity());
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      const int64_t entries = std::max<int64_t>(c.entries - g % 3, 1);
      counts.push_back(entries);
      free.push_back(g % 5 == 4 ? -1 : g * 13 % entries);
      Positions order(entries);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::sort(order, {}, [&](int64_t slot) { return random.slice(0)(g, slot); });
      for (int64_t i = 0; i < entries; ++i) {
        positions[g * c.capacity() + order[i]] = c.largest - 3 * (entries - 1 - i);
      }
      for (int64_t slot = 0; slot < c.capacity(); ++slot) {
        attention(g, slot) = slot >= entries
                                 ? std::nan("")
                                 : weight_of(c.weights, random.slice(1)(g, slot), slot, slot != free[g],
                                             positions[g * c.capacity() + slot] % 2 == 0);
      }
    }
  }

  struct Result {
    std::vector<float> values;
    std::vector<Positions> changed;
    Positions merged_into;
    int status;
  };

  Result run() const {
    cuda::Buffer<int64_t> used = cuda::upload(counts), evicted = cuda::upload(free),
                          at = cuda::upload(positions), into = cuda::upload(Positions(c.kv_heads + 1, -9));
    const cuda::Buffer<float> weights =
        cuda::upload(std::vector<float>(attention.numbers().begin(), attention.numbers().end()));
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    Lists changed(std::vector<Positions>(c.kv_heads), c.stride());
    CacheRows<T> cache(values, counts);
    const cuda::CacheSlots slots{c.kv_heads, c.capacity(), used.data(), evicted.data(), nullptr, at.data()};
    cuda::spread_entry<T>({c.neighbours, c.seed}, weights.data(), slots, cache.view(), changed.view(),
                          into.data(), status.data(), nullptr);
    cuda::synchronise(nullptr);
    return {cache.numbers(), changed.download(), cuda::download(into), cuda::download(status).front()};
  }

  reference::HeadCache cache_of(int64_t g) const {
    reference::HeadCache cache;
    for (int64_t slot = 0; slot < counts[g]; ++slot) {
      const VectorView value = values.slice(g).row(slot);
      cache.append(positions[g * c.capacity() + slot], value, value);
    }
    return cache;
  }
};

template <class T>
class SpreadEntryParity : public DeviceTest {
 protected:
  void expect_parity(const StepCase& c) {
    SCOPED_TRACE(std::to_string(c.entries) + " entries, " + std::to_string(c.neighbours) +
                 " neighbours, seed " + std::to_string(c.seed) + ", " + std::string(name(c.weights)) +
                 " weights, head_dim " + std::to_string(c.head_dim));
    const Step<T> step(c);
    const typename Step<T>::Result result = step.run();
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.merged_into[c.kv_heads], -9) << "written behind the last KV head";
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      SCOPED_TRACE("KV head " + std::to_string(g));
      expect_head(step, g, result);
    }
  }

  void expect_head(const Step<T>& step, int64_t g, const typename Step<T>::Result& result) {
    const StepCase& c = step.c;
    reference::HeadCache cache = step.cache_of(g);
    Positions changed;
    int64_t merged_into = kNothingEvicted;
    if (step.free[g] >= 0) {
      const VectorView attention = MatrixView(step.attention).row(g).first(step.counts[g]);
      const int64_t position = cache.positions[step.free[g]];
      std::vector<double> following;
      for (const int64_t entry : reference::following_entries(cache.positions, position, c.neighbours)) {
        following.push_back(attention[entry]);
      }
      ASSERT_TRUE(following.empty() || is_certain(attention[step.free[g]], following, c.seed, g, position))
          << "choose another seed: rounding decides";
      const HeadMerge merge = reference::spread_entry({c.neighbours, c.seed}, g, attention, step.free[g],
                                                      std::nullopt, cache, changed);
      merged_into = merge.clusters.empty() ? kNotMerged : merge.clusters.front().into;
      if (!following.empty()) ++(changed.empty() ? dropped_ : drawn_);
    }
    std::ranges::sort(changed);
    EXPECT_EQ(result.changed[g], changed);
    EXPECT_EQ(result.merged_into[g], merged_into);
    for (int64_t slot = 0; slot < c.capacity(); ++slot) {
      const std::span<const float> row(result.values.data() + (g * c.capacity() + slot) * c.head_dim,
                                       c.head_dim);
      if (slot >= step.counts[g]) {
        EXPECT_TRUE(std::ranges::all_of(row, [](float number) { return std::isnan(number); }));
      } else if (!std::ranges::binary_search(changed, slot)) {
        EXPECT_TRUE(std::ranges::equal(row, step.values.slice(g).row(slot))) << "slot " << slot;
      } else {
        expect_row(step, g, slot, row, cache.values.row(slot), std::ssize(changed));
      }
    }
  }

  void expect_row(const Step<T>& step, int64_t g, int64_t slot, std::span<const float> actual,
                  VectorView expected, int64_t sharing) {
    const MatrixView values = step.values.slice(g);
    std::vector<double> errors;
    for (int64_t d = 0; d < step.c.head_dim; ++d) {
      // Two roundings of the share, in whichever order it is formed, and one addition.
      const double share = std::abs(values(step.free[g], d)) / static_cast<double>(sharing);
      errors.push_back(sum_rounding(3, single_precision()) * (std::abs(values(slot, d)) + share));
    }
    EXPECT_TRUE(values_.hold(actual, expected, with_storage<T>(std::move(errors), expected)));
  }

  int64_t drawn_ = 0, dropped_ = 0;
  Comparator values_{"values that an evicted one was spread over, " +
                     std::string(StorageName::GetName<T>(0))};
};
TYPED_TEST_SUITE(SpreadEntryParity, StorageTypes, StorageName);

TYPED_TEST(SpreadEntryParity, MatchesReferenceAcrossSizes) {
  for (const int64_t entries : {1, 2, 3, 31, 32, 33, 64, 1023, 1025, 3000}) {
    for (const int64_t neighbours : {int64_t{1}, int64_t{3}, int64_t{32}, kNoLimit}) {
      this->expect_parity({.entries = entries, .neighbours = neighbours, .head_dim = 3});
    }
  }
  EXPECT_TRUE(this->values_.is_tight());
  EXPECT_GT(this->drawn_, 50);
  EXPECT_GT(this->dropped_, 10);
}

TYPED_TEST(SpreadEntryParity, DrawsAsTheReferenceForEverySeedAndKindOfWeights) {
  for (const int64_t seed : {int64_t{0}, int64_t{7}, int64_t{-1}, std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max()}) {
    for (const Weights weights : kWeights) {
      this->expect_parity({.seed = seed, .weights = weights, .kv_heads = 20});
    }
  }
}

TYPED_TEST(SpreadEntryParity, SpreadsForEveryHeadDim) {
  for (const int64_t head_dim : {1, 8, 31, 32, 33, 80, 128, 255, 256}) {
    this->expect_parity({.head_dim = head_dim});
  }
}

TYPED_TEST(SpreadEntryParity, FindsTheNextPositionsUpToTheLargest) {
  this->expect_parity({.entries = 600, .neighbours = 40, .largest = (int64_t{1} << 31) - 1});
  this->expect_parity({.entries = 700, .neighbours = 40, .largest = 3 * 700 - 1});
  this->expect_parity({.entries = 3000, .neighbours = 2900, .head_dim = 1, .kv_heads = 3});
}

TYPED_TEST(SpreadEntryParity, GivesTheSameUnderEverySchedule) {
  const Step<TypeParam> step({.entries = 1100, .neighbours = 50, .head_dim = 40, .kv_heads = 6});
  in_every_schedule([&] { return step.run().values; });
  in_every_schedule([&] { return step.run().changed; });
  in_every_schedule([&] { return step.run().merged_into; });
}

TYPED_TEST(SpreadEntryParity, ReportsWeightsThatAreNotFiniteAndValuesThatDoNotFit) {
  using T = TypeParam;
  const auto evicted_first = [] {
    Step<T> step({.entries = 8, .neighbours = 2, .kv_heads = 1});
    step.free[0] =
        std::ranges::min_element(step.positions.begin(), step.positions.begin() + 8) - step.positions.begin();
    return step;
  };
  EXPECT_EQ(evicted_first().run().status, 0);
  const auto newest = [](const Step<T>& step) {
    return std::ranges::max_element(step.positions) - step.positions.begin();
  };
  for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Step<T> step = evicted_first();
    step.attention(0, newest(step)) = wrong;
    EXPECT_EQ(step.run().status, 0) << "the newest entry does not share";
    step.attention(0, step.free[0]) = wrong;
    EXPECT_EQ(step.run().status, 1);
    step = evicted_first();
    step.free[0] = newest(step);
    step.attention(0, step.free[0]) = wrong;
    EXPECT_EQ(step.run().status, 0) << "no entry follows";
  }
  Step<T> step = evicted_first();
  step.attention(0, step.free[0]) = 1e6;  // drawn with certainty
  std::ranges::fill(step.values.numbers(), std::is_same_v<T, cuda::Float16> ? 6e4 : 3e38);
  step.values = rounded<T>(std::move(step.values));
  EXPECT_EQ(step.run().status, 1);
}

TYPED_TEST(SpreadEntryParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  CacheRows<T> cache(2, 5, 8), wide(2, 5, 257);
  const auto call = [&](CacheRows<T>& values, int64_t heads, int64_t capacity, int64_t neighbours,
                        int64_t stride) {
    cuda::spread_entry<T>({neighbours, 0}, nullptr, {heads, capacity}, values.view(),
                          {nullptr, nullptr, stride}, nullptr, nullptr, nullptr);
  };
  EXPECT_THROW(call(cache, 1, 5, 3, 3), ShapeMismatch);
  EXPECT_THROW(call(cache, 2, 6, 3, 3), ShapeMismatch);
  EXPECT_THROW(call(cache, 2, 5, 3, 2), ShapeMismatch);
  EXPECT_THROW(call(cache, 2, 5, 9, 4), ShapeMismatch);
  EXPECT_THROW(call(cache, 2, 5, 0, 3), ShapeMismatch);
  EXPECT_THROW(call(wide, 2, 5, 3, 3), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
