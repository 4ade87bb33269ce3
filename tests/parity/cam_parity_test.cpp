// CaM on the device: the same draws as the reference's, and values within the bounds of sums in any order.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/cam.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>

#include "clusters.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

// The attention of each entry: multiples of 2^-12 below 1, so that sums of up to thousands are exact in single precision.
std::vector<double> attention_of(int64_t entries, uint64_t seed) {
  const Tensor random = random_tensor(seed, 1, 1, entries);
  std::vector<double> attention;
  for (const double number : random.numbers()) {
    attention.push_back(std::floor(std::min(std::abs(number), 3.0) * 0x1p10) * 0x1p-12);
  }
  return attention;
}

// Whether single precision may round the probability across the drawn number: the draws with both ends of it differ.
bool is_near_draw(double probability, int64_t seed, int64_t kv_head, int64_t position) {
  const double off = 4 * 0x1p-24 * probability;
  return reference::spreads(probability - off, seed, kv_head, position) !=
         reference::spreads(probability + off, seed, kv_head, position);
}

struct Case {
  int64_t tokens = 60;
  std::vector<Positions> kept = {{3, 4, 10, 30, 59}, {0, 58}};
  int64_t head_dim = 10;
  Cam options = {};
  bool zeros = false;  // most weights are 0

  int64_t heads() const { return std::ssize(kept); }
};

Positions every(int64_t step, int64_t first, int64_t last) {
  Positions positions;
  for (int64_t i = first; i < last; i += step) positions.push_back(i);
  return positions;
}

template <class T>
class CamParity : public DeviceTest {
 protected:
  struct Subject {
    Case c;
    int64_t capacity = 2;
    Tensor values;
    std::vector<std::vector<double>> attention;  // per KV head

    explicit Subject(const Case& given)
        : c(given), values(rounded<T>(random_tensor(1, c.heads(), c.tokens, c.head_dim))) {
      for (int64_t g = 0; g < c.heads(); ++g) {
        capacity = std::max(capacity, std::ssize(c.kept[g]) + 2);
        std::vector<double>& own =
            attention.emplace_back(attention_of(c.tokens, static_cast<uint64_t>(g) + 5));
        for (int64_t j = 0; c.zeros && j < c.tokens; ++j) own[j] = j % 7 == 0 ? own[j] : 0;
      }
    }

    struct Result {
      std::vector<float> values;
      std::vector<uint8_t> spread;
    };

    Result run() const {
      const Uploaded<T> device_values(values);
      Positions kept(c.heads() * capacity, -5), leaving(c.heads() * c.tokens, -5), counts, left;
      std::vector<T> cache;
      std::vector<float> weights;
      const int64_t stride = cuda::padded<T>(c.head_dim);
      for (int64_t g = 0; g < c.heads(); ++g) {
        std::ranges::copy(c.kept[g], kept.begin() + g * capacity);
        const Positions others = reference::others_than(c.kept[g], c.tokens);
        std::ranges::copy(others, leaving.begin() + g * c.tokens);
        counts.push_back(std::ssize(c.kept[g]));
        left.push_back(std::ssize(others));
        weights.insert(weights.end(), attention[g].begin(), attention[g].end());
        for (int64_t i = 0; i < capacity; ++i) {
          for (int64_t d = 0; d < stride; ++d) {
            const bool used = i < counts[g] && d < c.head_dim;
            cache.push_back(stored<T>(used ? values.slice(g)(c.kept[g][i], d) : 0));
          }
        }
      }
      cuda::Buffer<int64_t> device_kept = cuda::upload(kept), device_leaving = cuda::upload(leaving),
                            kept_counts = cuda::upload(counts), left_counts = cuda::upload(left);
      const cuda::Buffer<float> device_weights = cuda::upload(weights);
      cuda::Buffer<T> memory = cuda::upload(cache);
      cuda::Buffer<uint8_t> spread = cuda::upload(std::vector<uint8_t>(c.heads() * c.tokens, 9));
      cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
      WorkingMemory working(cuda::spread_leaving_workspace(c.heads(), c.tokens, capacity, c.head_dim));
      cuda::spread_leaving<T>(c.options, device_weights.data(),
                              {device_leaving.data(), left_counts.data(), c.tokens},
                              {device_kept.data(), kept_counts.data(), capacity}, device_values.view(),
                              {memory.data(), c.heads(), capacity, c.head_dim, stride, capacity * stride},
                              spread.data(), status.data(), working.view(), nullptr);
      EXPECT_EQ(cuda::download(status), std::vector<int>{0});
      Result result{{}, cuda::download(spread)};
      for (const T number : cuda::download(memory))
        result.values.push_back(static_cast<float>(parity::number(number)));
      return result;
    }
  };

  void expect_parity(const Case& c) {
    SCOPED_TRACE(std::to_string(c.tokens) + " tokens, " + std::to_string(c.kept.front().size()) +
                 " kept, neighbours " + std::to_string(c.options.neighbours) + ", seed " +
                 std::to_string(c.options.seed));
    const Subject subject(c);
    const typename Subject::Result result = subject.run();
    const int64_t stride = cuda::padded<T>(c.head_dim);
    for (int64_t g = 0; g < c.heads(); ++g) {
      const Positions& kept = c.kept[g];
      reference::HeadCache cache;
      for (const int64_t position : kept) {
        cache.append(position, subject.values.slice(g).row(position), subject.values.slice(g).row(position));
      }
      Matrix sizes = cache.values;  // sums of absolute values
      std::ranges::transform(sizes.numbers(), sizes.data(), [](double number) { return std::abs(number); });
      std::vector<int64_t> terms(kept.size(), 1);
      reference::spread_leaving(c.options, g, subject.attention[g], subject.values.slice(g), cache);
      const Positions leaving = reference::others_than(kept, c.tokens);
      for (size_t i = 0; i < leaving.size(); ++i) {
        const Positions following = reference::following_entries(kept, leaving[i], c.options.neighbours);
        std::vector<double> weights;
        for (const int64_t entry : following) weights.push_back(subject.attention[g][kept[entry]]);
        const double own = subject.attention[g][leaving[i]];
        const double probability = following.empty() ? 0 : reference::spread_probability(own, weights);
        ASSERT_FALSE(is_near_draw(probability, c.options.seed, g, leaving[i]))
            << "the case decides nothing here";
        const bool drawn =
            !following.empty() && reference::spreads(probability, c.options.seed, g, leaving[i]);
        EXPECT_EQ(result.spread[g * c.tokens + static_cast<int64_t>(i)], drawn ? 1 : 0)
            << "position " << leaving[i];
        for (const int64_t entry : following) {
          if (!drawn) continue;
          ++terms[entry];
          for (int64_t d = 0; d < c.head_dim; ++d) {
            sizes(entry, d) +=
                std::abs(subject.values.slice(g)(leaving[i], d)) / static_cast<double>(following.size());
          }
        }
      }
      for (size_t i = leaving.size(); static_cast<int64_t>(i) < c.tokens; ++i) {
        EXPECT_EQ(result.spread[g * c.tokens + static_cast<int64_t>(i)], 9)
            << "written behind the last entry";
      }
      for (int64_t i = 0; i < std::ssize(kept); ++i) {
        const VectorView expected = cache.values.view().row(i);
        const double rounding = reference::sum_rounding(terms[i] + 40, reference::single_precision());
        std::vector<double> bounds;
        for (int64_t d = 0; d < c.head_dim; ++d) bounds.push_back(rounding * sizes(i, d) + 1e-37);
        const std::span<const float> own(result.values.data() + (g * subject.capacity + i) * stride,
                                         c.head_dim);
        EXPECT_TRUE(values_.hold(own, expected, with_storage<T>(bounds, expected))) << "kept entry " << i;
      }
    }
  }

  Comparator values_{"spread_leaving, " + std::string(StorageName::GetName<T>(0))};
};
TYPED_TEST_SUITE(CamParity, StorageTypes, StorageName);

TYPED_TEST(CamParity, SpreadsAPromptsValuesAcrossSizes) {
  for (const int64_t tokens : {1, 31, 32, 33, 64, 65, 300}) {
    for (const int64_t step : {1, 2, 5, 17}) {
      this->expect_parity(
          {.tokens = tokens, .kept = {every(step, 0, tokens), every(step, tokens / 2, tokens), {0}}});
    }
  }
  EXPECT_TRUE(this->values_.is_tight());
}

TYPED_TEST(CamParity, SpreadsOverAnyNumberOfNeighboursWithAnySeed) {
  for (const int64_t neighbours : {1, 2, 3, 32, 1000000}) {
    for (const int64_t seed : {0, 1, -7, 123456789}) {
      this->expect_parity({.tokens = 200,
                           .kept = {every(4, 3, 190), {0, 100}},
                           .head_dim = 40,
                           .options = {neighbours, seed}});
    }
  }
}

TYPED_TEST(CamParity, SpreadsAGapOfThousands) {
  Positions kept{0, 1, 2, 3};
  for (int64_t i = 2900; i < 3000; ++i) kept.push_back(i);
  this->expect_parity({.tokens = 3000, .kept = {kept, {2999}}, .head_dim = 8});
}

TYPED_TEST(CamParity, TakesZeroOfZeroAsZeroAndAllElseOfZeroAsOne) {
  this->expect_parity(
      {.tokens = 150, .kept = {every(6, 1, 150), every(13, 0, 150)}, .options = {3, 4}, .zeros = true});
}

TYPED_TEST(CamParity, GivesTheSameUnderEverySchedule) {
  const typename TestFixture::Subject subject(
      {.tokens = 300, .kept = {every(5, 0, 300), {0, 299}}, .head_dim = 40});
  in_every_schedule([&] { return subject.run().values; });
  in_every_schedule([&] { return subject.run().spread; });
}

// One evicted entry of each KV head, in a cache whose positions do not ascend.
TYPED_TEST(CamParity, SpreadsAnEvictedEntrysValueOverTheNextPositions) {
  using T = TypeParam;
  for (const int64_t entries : {1, 2, 15, 33, 90, 2000}) {
    for (const int64_t neighbours : {1, 4, 32, 5000}) {
      SCOPED_TRACE(std::to_string(entries) + " entries, neighbours " + std::to_string(neighbours));
      const int64_t capacity = entries + 2, heads = 4, head_dim = 12, stride = cuda::padded<T>(head_dim);
      const Cam options{neighbours, 3};
      const Tensor values = rounded<T>(random_tensor(8, heads, capacity, head_dim));
      const Positions evicted{entries / 2, -1, 0, entries - 1};
      Positions positions(heads * capacity, -1);
      std::vector<float> weights(heads * capacity, 0.5f);
      std::vector<T> rows(heads * capacity * stride);
      for (int64_t g = 0; g < heads; ++g) {
        const std::vector<double> own = attention_of(entries, static_cast<uint64_t>(g) + 20);
        for (int64_t slot = 0; slot < entries; ++slot) {
          positions[g * capacity + slot] = (slot * 7919 + g) % entries + 100;
          weights[g * capacity + slot] = static_cast<float>(own[slot]);
          for (int64_t d = 0; d < head_dim; ++d) {
            rows[(g * capacity + slot) * stride + d] = stored<T>(values.slice(g)(slot, d));
          }
        }
      }
      cuda::Buffer<int64_t> used = cuda::upload(Positions(heads, entries)), free = cuda::upload(evicted),
                            at = cuda::upload(positions);
      const int64_t most = std::min(neighbours, capacity);
      cuda::Buffer<int64_t> changed = cuda::upload(Positions(heads * most, -7)),
                            count = cuda::upload(Positions(heads, -7)),
                            into = cuda::upload(Positions(heads, -7));
      const cuda::Buffer<float> attention = cuda::upload(weights);
      cuda::Buffer<T> memory = cuda::upload(rows);
      cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
      cuda::spread_entry<T>(options, attention.data(),
                            {heads, capacity, used.data(), free.data(), nullptr, at.data()},
                            {memory.data(), heads, capacity, head_dim, stride, capacity * stride},
                            {changed.data(), count.data(), most}, into.data(), status.data(), nullptr);
      const Positions slots = cuda::download(changed), counts = cuda::download(count),
                      merged = cuda::download(into);
      const std::vector<T> after = cuda::download(memory);
      for (int64_t g = 0; g < heads; ++g) {
        if (evicted[g] < 0) {
          EXPECT_EQ(merged[g], kNothingEvicted);
          EXPECT_EQ(counts[g], 0);
          continue;
        }
        const Positions own(positions.begin() + g * capacity, positions.begin() + g * capacity + entries);
        Positions following = reference::following_entries(own, own[evicted[g]], neighbours);
        std::vector<double> shared;
        for (const int64_t slot : following) shared.push_back(weights[g * capacity + slot]);
        const double weight = weights[g * capacity + evicted[g]];
        const double probability = following.empty() ? 0 : reference::spread_probability(weight, shared);
        ASSERT_FALSE(is_near_draw(probability, options.seed, g, own[evicted[g]]));
        const bool drawn =
            !following.empty() && reference::spreads(probability, options.seed, g, own[evicted[g]]);
        EXPECT_EQ(merged[g], drawn ? own[following.front()] : kNotMerged);
        std::ranges::sort(following);
        if (!drawn) following.clear();
        ASSERT_EQ(counts[g], std::ssize(following));
        EXPECT_EQ(Positions(slots.begin() + g * most, slots.begin() + g * most + counts[g]), following);
        for (int64_t slot = 0; slot < entries; ++slot) {
          const bool shares = std::ranges::binary_search(following, slot);
          for (int64_t d = 0; d < head_dim; ++d) {
            const double before = values.slice(g)(slot, d);
            const double share =
                shares ? values.slice(g)(evicted[g], d) / static_cast<double>(following.size()) : 0;
            const std::vector<double> bound = with_storage<T>(
                {0x1p-22 * (std::abs(before) + std::abs(share))}, std::vector{before + share});
            EXPECT_NEAR(number(after[(g * capacity + slot) * stride + d]), before + share,
                        shares ? bound.front() : 0);
          }
        }
      }
    }
  }
}

class CamOperations : public DeviceTest {};

TEST_F(CamOperations, MeanAttentionIsTheMeanOfTheHeadsWeights) {
  constexpr int64_t kHeads = 6, kGroups = 2, kCapacity = 40;
  const Tensor random = random_tensor(4, 1, kHeads, kCapacity, 3);
  const std::vector<float> logits(random.numbers().begin(), random.numbers().end());
  const std::vector<float> sums{1, 2, 3, 4, 5, 6};
  const Positions counts{33, 40};
  const cuda::Buffer<float> device_logits = cuda::upload(logits), device_sums = cuda::upload(sums);
  const cuda::Buffer<int64_t> count = cuda::upload(counts);
  Output mean(kGroups * kCapacity);
  cuda::mean_attention(device_logits.data(), device_sums.data(), kHeads, kGroups, kCapacity, count.data(),
                       mean.data(), nullptr);
  const std::vector<float> result = mean.numbers();
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t j = 0; j < kCapacity; ++j) {
      if (j >= counts[g]) {
        EXPECT_TRUE(Output::is_unwritten(result[g * kCapacity + j]));
        continue;
      }
      double expected = 0;
      for (int64_t h = 3 * g; h < 3 * g + 3; ++h)
        expected += std::exp(logits[h * kCapacity + j] - sums[h]) / 3;
      EXPECT_NEAR(result[g * kCapacity + j], expected, 2e-6 * expected);
    }
  }
  EXPECT_THROW(cuda::mean_attention(nullptr, nullptr, 5, 2, 4, nullptr, nullptr, nullptr), ShapeMismatch);
}

// A budget of 0: nothing is spread, and that is recorded for every leaving entry.
TEST_F(CamOperations, RecordWhatIsSpreadOverACacheWithoutRows) {
  const Uploaded<float> values(random_tensor(1, 1, 3, 8));
  CacheRows<float> cache(1, 0, 8);
  const cuda::Buffer<float> attention = cuda::upload(std::vector<float>{1, 2, 3});
  cuda::Buffer<int64_t> leaving = cuda::upload(Positions{0, 1, 2, -5}), count = cuda::upload(Positions{3}),
                        none = cuda::upload(Positions{0});
  cuda::Buffer<uint8_t> spread = cuda::upload(std::vector<uint8_t>(4, 9));
  cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
  WorkingMemory memory(cuda::spread_leaving_workspace(1, 4, 0, 8));
  cuda::spread_leaving<float>({}, attention.data(), {leaving.data(), count.data(), 4},
                              {nullptr, none.data(), 0}, values.view(), cache.view(), spread.data(),
                              status.data(), memory.view(), nullptr);
  EXPECT_EQ(cuda::download(spread), (std::vector<uint8_t>{0, 0, 0, 9}));
  EXPECT_EQ(cuda::download(status), std::vector<int>{0});
}

TEST_F(CamOperations, RefuseShapesThatDoNotFit) {
  const Uploaded<float> values(Tensor(2, 5, 8));
  CacheRows<float> cache(2, 4, 8), narrow(2, 4, 7), one(1, 4, 8);
  WorkingMemory memory(cuda::spread_leaving_workspace(2, 5, 4, 8));
  const auto spread = [&](CacheRows<float>& to, int64_t kept_stride, int64_t neighbours,
                          cuda::Workspace working) {
    cuda::spread_leaving<float>({neighbours, 0}, nullptr, {nullptr, nullptr, 5},
                                {nullptr, nullptr, kept_stride}, values.view(), to.view(), nullptr, nullptr,
                                working, nullptr);
  };
  EXPECT_THROW(spread(narrow, 4, 1, memory.view()), ShapeMismatch);
  EXPECT_THROW(spread(one, 4, 1, memory.view()), ShapeMismatch);
  EXPECT_THROW(spread(cache, 3, 1, memory.view()), ShapeMismatch);
  EXPECT_THROW(spread(cache, 4, 0, memory.view()), ShapeMismatch);
  EXPECT_THROW(spread(cache, 4, 1, {}), ShapeMismatch);
  const Uploaded<float> wide(Tensor(2, 5, 257));
  CacheRows<float> wide_cache(2, 4, 257);
  WorkingMemory enough(cuda::spread_leaving_workspace(2, 5, 4, 257));
  EXPECT_THROW(
      cuda::spread_leaving<float>({}, nullptr, {nullptr, nullptr, 5}, {nullptr, nullptr, 4}, wide.view(),
                                  wide_cache.view(), nullptr, nullptr, enough.view(), nullptr),
      ShapeMismatch);
  const auto entry = [&](const cuda::CacheSlots& slots, int64_t stride) {
    cuda::spread_entry<float>({3, 0}, nullptr, slots, cache.view(), {nullptr, nullptr, stride}, nullptr,
                              nullptr, nullptr);
  };
  EXPECT_THROW(entry({1, 4}, 3), ShapeMismatch);
  EXPECT_THROW(entry({2, 5}, 3), ShapeMismatch);
  EXPECT_THROW(entry({2, 4}, 2), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
