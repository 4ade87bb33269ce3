// CaM at the prompt's end on the device: the reference's draws, and values within the rounding of their sums.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/cam.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>

#include "cam_draws.hpp"
#include "clusters.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

using reference::single_precision;
using reference::sum_rounding;

constexpr uint8_t kUnwritten = 77;

enum class Kept {
  everywhere,
  sinks,   ///< up to four first entries, and the newest ones
  oldest,  ///< all others have no entry that follows
  newest,  ///< all others have the same next entry
};

Positions positions_of(Kept kind, int64_t count, int64_t tokens) {
  const int64_t sinks = kind == Kept::sinks ? std::min<int64_t>(4, count / 2) : 0;
  Positions positions;
  for (int64_t i = 0; i < count; ++i) {
    const bool is_first = kind == Kept::oldest || i < sinks;
    positions.push_back(kind == Kept::everywhere ? i * tokens / count : is_first ? i : tokens - count + i);
  }
  return positions;
}

struct Case {
  int64_t tokens = 60;
  Positions kept = {19, 7};  // per KV head: how many
  Kept which = Kept::everywhere;
  Weights weights = Weights::random;
  Cam options = {.neighbours = 3, .seed = 1};
  int64_t head_dim = 10;
  double size = 1;  // of values

  int64_t spare = 2;  // rows of the cache

  int64_t kv_heads() const { return std::ssize(kept); }
  int64_t capacity() const { return *std::ranges::max_element(kept) + spare; }
};

template <class T>
struct Prompt {
  Case c;
  Tensor values, cached;
  Matrix attention;
  std::vector<Positions> kept;

  explicit Prompt(const Case& given)
      : c(given),
        values(rounded<T>(random_tensor(1, c.kv_heads(), c.tokens, c.head_dim, c.size))),
        cached(c.kv_heads(), c.capacity(), c.head_dim),
        attention(c.kv_heads(), c.tokens) {
    const Tensor random = random_tensor(2, 1, c.kv_heads(), c.tokens);
    for (int64_t g = 0; g < c.kv_heads(); ++g) {
      const Positions& own = kept.emplace_back(positions_of(c.which, c.kept[g], c.tokens));
      for (int64_t j = 0; j < c.tokens; ++j) {
        const int64_t before = std::ranges::lower_bound(own, j) - own.begin();
        const bool stays = before < std::ssize(own) && own[before] == j;
        attention(g, j) =
            weight_of(c.weights, random.slice(0)(g, j), j, stays, before >= std::ssize(own) / 2);
      }
      for (int64_t i = 0; i < std::ssize(own); ++i) {
        std::ranges::copy(values.slice(g).row(own[i]), cached.data() + (g * c.capacity() + i) * c.head_dim);
      }
    }
  }

  struct Result {
    std::vector<float> values;
    std::vector<uint8_t> spread;
    int status;
  };

  Result run() const {
    const int64_t stride = c.tokens + 3;
    Lists kept_lists(kept, c.capacity()), leaving(std::vector<Positions>(c.kv_heads()), stride);
    WorkingMemory marks(cuda::merge_targets_workspace(c.kv_heads(), c.tokens)),
        memory(cuda::spread_leaving_workspace(c.kv_heads(), stride, c.capacity(), c.head_dim));
    const cuda::Buffer<float> weights =
        cuda::upload(std::vector<float>(attention.numbers().begin(), attention.numbers().end()));
    const Uploaded<T> all(values);
    CacheRows<T> cache(cached, c.kept);
    cuda::Buffer<uint8_t> spread = cuda::upload(std::vector<uint8_t>(c.kv_heads() * stride, kUnwritten));
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    cuda::entries_left_out(kept_lists.view(), c.kv_heads(), c.tokens, leaving.view(), marks.view(), nullptr);
    cuda::spread_leaving<T>(c.options, weights.data(), leaving.view(), kept_lists.view(), all.view(),
                            cache.view(), spread.data(), status.data(), memory.view(), nullptr);
    cuda::synchronise(nullptr);
    kept_lists.download();
    leaving.download();
    return {cache.numbers(), cuda::download(spread), cuda::download(status).front()};
  }
};

template <class T>
class SpreadLeavingParity : public DeviceTest {
 protected:
  // What the kept entries of a KV head receive by the reference's draws, in absolute terms.
  struct Received {
    Matrix sizes;      // [kept, head_dim]: the sum of the shares' absolute values, and the entry's own
    Positions depths;  // [kept]: additions that an element of the sum takes part in
    std::vector<bool> any;
  };

  static Received received(const Prompt<T>& prompt, int64_t g, const std::vector<bool>& spread) {
    const Positions& kept = prompt.kept[g];
    const MatrixView values = prompt.values.slice(g);
    const auto count = std::ssize(kept);
    Received result{Matrix(count, prompt.c.head_dim), Positions(count), std::vector<bool>(count)};
    Positions gaps(count);  // the entries whose next kept one this is
    for (int64_t position = 0; position < prompt.c.tokens; ++position) {
      const int64_t next = std::ranges::lower_bound(kept, position) - kept.begin();
      if (next == count || kept[next] == position) continue;
      ++gaps[next];
      const int64_t sharing = std::min(prompt.c.options.neighbours, count - next);
      for (int64_t j = next; spread[position] && j < next + sharing; ++j) {
        result.any[j] = true;
        for (int64_t c = 0; c < prompt.c.head_dim; ++c) {
          result.sizes(j, c) += std::abs(values(position, c)) / static_cast<double>(sharing);
        }
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      const int64_t first = std::max<int64_t>(0, j - prompt.c.options.neighbours + 1);
      const int64_t most = *std::max_element(gaps.begin() + first, gaps.begin() + j + 1);
      result.depths[j] = accumulation_depth(most) + (j - first + 1) + 1;
      for (int64_t c = 0; c < prompt.c.head_dim; ++c) {
        result.sizes(j, c) += std::abs(values(kept[j], c));
      }
    }
    return result;
  }

  std::vector<bool> expect_draws(const Prompt<T>& prompt, int64_t g, const std::vector<uint8_t>& bytes,
                                 const HeadMerge& merge) {
    const Case& c = prompt.c;
    const Positions& kept = prompt.kept[g];
    const VectorView attention = MatrixView(prompt.attention).row(g);
    std::vector<bool> spread(c.tokens);
    for (const MergeCluster& cluster : merge.clusters) {
      for (const int64_t position : cluster.from) spread[position] = true;
    }
    const Positions leaving = reference::others_than(kept, c.tokens);
    for (int64_t i = 0; i < c.tokens + 3; ++i) {
      const uint8_t byte = bytes[g * (c.tokens + 3) + i];
      if (i >= std::ssize(leaving)) {
        EXPECT_EQ(byte, kUnwritten) << "written behind the last leaving entry";
        continue;
      }
      const int64_t position = leaving[i], next = position - i;
      std::vector<double> following;
      for (int64_t j = next; j < std::ssize(kept) && j - next < c.options.neighbours; ++j) {
        following.push_back(attention[kept[j]]);
      }
      EXPECT_TRUE(following.empty() ||
                  is_certain(attention[position], following, c.options.seed, g, position))
          << "choose another seed: rounding decides about position " << position;
      EXPECT_EQ(byte, spread[position] ? 1 : 0) << "position " << position;
      if (!following.empty()) ++(spread[position] ? drawn_ : dropped_);
    }
    return spread;
  }

  void expect_parity(const Case& c) {
    SCOPED_TRACE(std::to_string(c.tokens) + " tokens, " + std::to_string(c.kept.front()) + " kept, " +
                 std::to_string(c.options.neighbours) + " neighbours, seed " +
                 std::to_string(c.options.seed) + ", " + std::string(name(c.weights)) +
                 " weights, head_dim " + std::to_string(c.head_dim));
    const Prompt<T> prompt(c);
    const typename Prompt<T>::Result result = prompt.run();
    EXPECT_EQ(result.status, 0);
    for (int64_t g = 0; g < c.kv_heads(); ++g) {
      SCOPED_TRACE("KV head " + std::to_string(g));
      const auto count = std::ssize(prompt.kept[g]);
      reference::HeadCache cache{prompt.kept[g], Matrix(count, c.head_dim), Matrix(count, c.head_dim), {}};
      for (int64_t i = 0; i < count; ++i) {
        std::ranges::copy(prompt.cached.slice(g).row(i), cache.values.row(i).begin());
      }
      const HeadMerge merge = reference::spread_leaving(c.options, g, MatrixView(prompt.attention).row(g),
                                                        prompt.values.slice(g), cache);
      const Received own = received(prompt, g, expect_draws(prompt, g, result.spread, merge));
      expect_values(prompt, g, result.values, cache, own);
    }
  }

  void expect_values(const Prompt<T>& prompt, int64_t g, const std::vector<float>& values,
                     const reference::HeadCache& cache, const Received& received) {
    const Case& c = prompt.c;
    std::vector<float> actual;
    std::vector<double> expected, bounds;
    for (int64_t i = 0; i < c.capacity(); ++i) {
      const std::span<const float> row(values.data() + (g * c.capacity() + i) * c.head_dim, c.head_dim);
      if (i >= cache.entries()) {
        EXPECT_TRUE(std::ranges::all_of(row, [](float number) { return std::isnan(number); }))
            << "written behind the last kept entry";
        continue;
      }
      if (!received.any[i]) {
        EXPECT_TRUE(std::ranges::equal(row, prompt.cached.slice(g).row(i))) << "row " << i << " has changed";
        continue;
      }
      // Besides the additions: the share itself and its product with the value.
      const double share = sum_rounding(received.depths[i] + 2, single_precision());
      std::vector<double> errors;
      for (int64_t d = 0; d < c.head_dim; ++d) errors.push_back(share * received.sizes(i, d));
      const VectorView sums = cache.values.row(i);
      errors = with_storage<T>(std::move(errors), sums);
      actual.insert(actual.end(), row.begin(), row.end());
      expected.insert(expected.end(), sums.begin(), sums.end());
      bounds.insert(bounds.end(), errors.begin(), errors.end());
    }
    if (expected.empty()) return;
    EXPECT_TRUE(values_.hold(actual, expected, bounds));
  }

  int64_t drawn_ = 0, dropped_ = 0;
  Comparator values_{"values that were spread over, " + std::string(StorageName::GetName<T>(0))};
};
TYPED_TEST_SUITE(SpreadLeavingParity, StorageTypes, StorageName);

TYPED_TEST(SpreadLeavingParity, MatchesReferenceAcrossSizes) {
  for (const int64_t tokens : {1, 31, 32, 33, 64, 65, 128, 129, 300}) {
    for (const int64_t kept : {int64_t{0}, int64_t{1}, tokens / 3, tokens}) {
      this->expect_parity({.tokens = tokens, .kept = {kept, std::min<int64_t>(tokens, 5), (tokens + 1) / 2}});
    }
  }
  EXPECT_TRUE(this->values_.is_tight());
  EXPECT_GT(this->drawn_, 100);
  EXPECT_GT(this->dropped_, 100);
}

TYPED_TEST(SpreadLeavingParity, SpreadsOverAnyNumberOfNeighbours) {
  for (const int64_t neighbours : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{32}, int64_t{59}, int64_t{60},
                                   int64_t{61}, kNoLimit, std::numeric_limits<int64_t>::max()}) {
    for (const Kept which : {Kept::everywhere, Kept::sinks, Kept::oldest, Kept::newest}) {
      this->expect_parity({.tokens = 200,
                           .kept = {60, 11},
                           .which = which,
                           .options = {.neighbours = neighbours, .seed = 2}});
    }
  }
}

TYPED_TEST(SpreadLeavingParity, DrawsAsTheReferenceForEverySeedAndKindOfWeights) {
  for (const int64_t seed : {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{12345},
                             std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    for (const Weights weights : kWeights) {
      this->expect_parity({.tokens = 120,
                           .kept = {30, 40, 7, 1, 90},
                           .weights = weights,
                           .options = {.neighbours = 4, .seed = seed},
                           .head_dim = 3});
    }
  }
}

TYPED_TEST(SpreadLeavingParity, SpreadsForEveryHeadDim) {
  for (const int64_t head_dim : {1, 8, 31, 32, 33, 80, 128, 255, 256}) {
    this->expect_parity({.options = {.neighbours = 2, .seed = 3}, .head_dim = head_dim});
  }
}

TYPED_TEST(SpreadLeavingParity, SpreadsNothingOverACacheWithoutRows) {
  this->expect_parity({.kept = {0, 0}, .spare = 0});
}
TYPED_TEST(SpreadLeavingParity, FillsTheWholeCache) {
  this->expect_parity({.tokens = 90, .kept = {40, 40}, .spare = 0});
}

// A few first entries and the newest ones are kept, as StreamingLLM does: all others
// have the same next entry.
TYPED_TEST(SpreadLeavingParity, SpreadsAGapOfThousands) {
  for (const Kept which : {Kept::sinks, Kept::newest}) {
    this->expect_parity(
        {.tokens = 3000, .kept = {100, 40}, .which = which, .options = {.neighbours = 32, .seed = 8}});
  }
  this->expect_parity({.tokens = 5000, .kept = {1700, 900}, .options = {.neighbours = 32, .seed = 5}});
}

TYPED_TEST(SpreadLeavingParity, GivesTheSameUnderEverySchedule) {
  const Prompt<TypeParam> prompt({.tokens = 500,
                                  .kept = {90, 31},
                                  .which = Kept::sinks,
                                  .options = {.neighbours = 8, .seed = 6},
                                  .head_dim = 40});
  in_every_schedule([&] { return prompt.run().values; });
  in_every_schedule([&] { return prompt.run().spread; });
}

TYPED_TEST(SpreadLeavingParity, ReportsWeightsThatAreNotFiniteAndValuesThatDoNotFit) {
  using T = TypeParam;
  for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto status_with = [&](int64_t position) {
      Prompt<T> prompt({.tokens = 10, .kept = {4, 2}});
      prompt.attention(1, position) = wrong;  // positions 0 and 5 are kept
      return prompt.run().status;
    };
    EXPECT_EQ(status_with(0), 0) << "no entry is before the first kept one";
    EXPECT_EQ(status_with(1), 1);
    EXPECT_EQ(status_with(5), 1);
    EXPECT_EQ(status_with(9), 0) << "no entry follows";
  }
  // All values are near the largest number, so that two of them do not fit.
  Prompt<T> prompt({.tokens = 10, .kept = {1}, .which = Kept::newest, .options = {.neighbours = 1}});
  std::ranges::fill(prompt.values.numbers(), std::is_same_v<T, cuda::Float16> ? 6e4 : 3e38);
  prompt.values = rounded<T>(std::move(prompt.values));
  std::ranges::fill(prompt.cached.numbers(), prompt.values.data()[0]);
  EXPECT_EQ(prompt.run().status, 1);
}

TYPED_TEST(SpreadLeavingParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> values(Tensor(2, 20, 8)), wide(Tensor(2, 20, 257));
  CacheRows<T> cache(2, 5, 8), narrow(2, 5, 7), one(1, 5, 8), broad(2, 5, 257);
  WorkingMemory enough(cuda::spread_leaving_workspace(2, 70, 5, 257)),
      less(cuda::spread_leaving_workspace(2, 70, 5, 8) - 1);
  const auto call = [&](const Uploaded<T>& from, CacheRows<T>& to, int64_t stride, int64_t neighbours,
                        WorkingMemory& memory) {
    cuda::spread_leaving<T>({neighbours, 0}, nullptr, {nullptr, nullptr, 70}, {nullptr, nullptr, stride},
                            from.view(), to.view(), nullptr, nullptr, memory.view(), nullptr);
  };
  EXPECT_THROW(call(values, narrow, 5, 1, enough), ShapeMismatch);
  EXPECT_THROW(call(values, one, 5, 1, enough), ShapeMismatch);
  EXPECT_THROW(call(values, cache, 4, 1, enough), ShapeMismatch);
  EXPECT_THROW(call(values, cache, 5, 0, enough), ShapeMismatch);
  EXPECT_THROW(call(values, cache, 5, 1, less), ShapeMismatch);
  EXPECT_THROW(call(wide, broad, 5, 1, enough), ShapeMismatch);
}

class MeanAttentionParity : public DeviceTest {};

TEST_F(MeanAttentionParity, IsTheReferencesMeanOfEachGroup) {
  Comparator comparator("mean attention");
  for (const int64_t group_size : {1, 2, 4, 7}) {
    for (const int64_t entries : {1, 31, 32, 33, 128, 129, 300}) {
      SCOPED_TRACE(std::to_string(group_size) + " heads, " + std::to_string(entries) + " entries");
      constexpr int64_t kHeads = 3;
      const int64_t capacity = entries + 3, query_heads = kHeads * group_size;
      const Tensor random = random_tensor(1, 1, query_heads, capacity, 4);
      std::vector<float> logits(query_heads * capacity, std::nanf("")), sums;
      const Positions counts{entries, std::max<int64_t>(entries - 1, 1), 1};
      for (int64_t h = 0; h < query_heads; ++h) {
        double sum = 0;
        for (int64_t j = 0; j < counts[h / group_size]; ++j) {
          logits[h * capacity + j] = static_cast<float>(random.slice(0)(h, j));
          sum += std::exp(static_cast<double>(logits[h * capacity + j]));
        }
        sums.push_back(static_cast<float>(std::log(sum)));
      }
      const cuda::Buffer<float> device_logits = cuda::upload(logits), device_sums = cuda::upload(sums);
      const cuda::Buffer<int64_t> count = cuda::upload(counts);
      Output mean(kHeads * capacity);
      cuda::mean_attention(device_logits.data(), device_sums.data(), query_heads, kHeads, capacity,
                           count.data(), mean.data(), nullptr);
      const std::vector<float> result = mean.numbers();
      for (int64_t g = 0; g < kHeads; ++g) {
        Matrix own(group_size, counts[g]);
        std::vector<double> bounds(counts[g]);
        const reference::Arithmetic arithmetic = single_precision();
        for (int64_t h = 0; h < group_size; ++h) {
          const int64_t head = g * group_size + h;
          for (int64_t j = 0; j < counts[g]; ++j) {
            own(h, j) = logits[head * capacity + j];
            const double log_weight = own(h, j) - sums[head];
            // The log-sum-exp is rounded, and so is the difference; then the exponential,
            // the sum and the division.
            const double off =
                arithmetic.unit * (std::abs(static_cast<double>(sums[head])) + std::abs(log_weight));
            const double relative = (1 + std::expm1(off)) * (1 + arithmetic.exponential) *
                                        (1 + sum_rounding(group_size + 1, arithmetic)) -
                                    1 + sum_rounding(counts[g] + 8, reference::double_precision());
            bounds[j] += relative * std::exp(log_weight + off) / static_cast<double>(group_size);
          }
        }
        const std::vector<double> expected = reference::mean_attention(own);
        const std::span<const float> actual(result.data() + g * capacity, counts[g]);
        EXPECT_TRUE(comparator.hold(actual, expected, bounds)) << "KV head " << g;
        EXPECT_TRUE(std::all_of(result.begin() + g * capacity + counts[g],
                                result.begin() + (g + 1) * capacity, Output::is_unwritten));
      }
    }
  }
  EXPECT_TRUE(comparator.is_tight());
}

TEST_F(MeanAttentionParity, GivesTheSameUnderEverySchedule) {
  const cuda::Buffer<float> logits = cuda::upload(std::vector<float>(4 * 200, -3)),
                            sums = cuda::upload(std::vector<float>{1, 2, 3, 4});
  const cuda::Buffer<int64_t> count = cuda::upload(Positions{200, 77});
  in_every_schedule([&] {
    Output mean(2 * 200);
    cuda::mean_attention(logits.data(), sums.data(), 4, 2, 200, count.data(), mean.data(), nullptr);
    return mean.numbers();
  });
}

TEST_F(MeanAttentionParity, RefusesHeadsThatFormNoGroups) {
  EXPECT_THROW(cuda::mean_attention(nullptr, nullptr, 3, 2, 5, nullptr, nullptr, nullptr), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
