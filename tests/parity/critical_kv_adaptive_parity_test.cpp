// CriticalKV's adaptive stage one on the device: it takes as many entries as the reference, except where the
// mass nearly ties with 1/2.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gmock/gmock-matchers.h>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>

#include "support.hpp"
#include "support/message_of.hpp"

namespace kvbound::parity {
namespace {

template <class T>
class AdaptiveStageOneParity : public DeviceTest {};
TYPED_TEST_SUITE(AdaptiveStageOneParity, StorageTypes, StorageName);

struct AdaptiveShape {
  int64_t query_heads, kv_heads, head_dim, tokens, window, recent;
  int64_t sinks = 0;

  cuda::AlwaysKept always() const { return {sinks, recent}; }
  int64_t candidates() const { return tokens - sinks - recent; }
};

// An observation window over a prompt, exact in T. The candidates are all positions that are not always kept.
template <cuda::Storage T>
struct AdaptiveInput {
  AdaptiveShape shape;
  Tensor keys, queries;
  double scale;
  std::vector<int64_t> k;                    // per KV head
  std::vector<float> log_sum_exp;            // [query_heads, window]
  std::vector<Matrix> weights;               // per KV head: [group * window, tokens], with that log-sum-exp
  std::vector<Matrix> logit_errors;          // likewise
  std::vector<std::vector<int64_t>> ranked;  // per KV head

  // share  the share of the candidates that are ranked
  AdaptiveInput(const AdaptiveShape& s, double sharpness, double share)
      : shape(s),
        keys(rounded<T>(random_tensor(21, s.kv_heads, s.tokens, s.head_dim))),
        queries(rounded<T>(random_tensor(22, s.query_heads, s.window, s.head_dim, sharpness))),
        scale(1 / std::sqrt(static_cast<double>(s.head_dim))) {
    for (int64_t g = 0; g < s.kv_heads; ++g) {
      form_weights(g);
      k.push_back(static_cast<int64_t>(share * static_cast<double>(s.candidates())) / (g + 1));
      ranked.push_back(reference::rank_top(mean_weights(g), k.back()));
      for (int64_t& position : ranked.back()) position += s.sinks;
    }
  }

  std::vector<int64_t> always_kept() const {
    std::vector<int64_t> positions;
    for (int64_t j = 0; j < shape.sinks; ++j) positions.push_back(j);
    for (int64_t j = shape.tokens - shape.recent; j < shape.tokens; ++j) positions.push_back(j);
    return positions;
  }

  std::vector<int64_t> device_counts() const {
    const Uploaded<T> device_keys{keys.view()}, device_queries{queries.view()};
    const cuda::Buffer<float> lse{std::span<const float>(log_sum_exp)};
    const cuda::Buffer<int64_t> device_k{std::span<const int64_t>(k)};
    const int64_t stride = *std::ranges::max_element(k) + 2;
    std::vector<int64_t> all_ranked(k.size() * static_cast<size_t>(stride), int64_t{1} << 40);
    for (size_t g = 0; g < k.size(); ++g) {
      std::ranges::copy(ranked[g], all_ranked.begin() + static_cast<std::ptrdiff_t>(g) * stride);
    }
    const cuda::Buffer<int64_t> device_ranked{std::span<const int64_t>(all_ranked)};
    std::vector<int64_t> counts(k.size(), -1);
    cuda::Buffer<int64_t> count{std::span<const int64_t>(counts)};
    WorkingMemory memory(cuda::adaptive_stage_one_workspace(shape.query_heads, shape.window, shape.tokens));
    cuda::adaptive_stage_one<T>({device_queries.view(), device_keys.view(), scale}, lse.data(),
                                shape.always(), device_ranked.data(), stride, device_k.data(), count.data(),
                                memory.view(), nullptr);
    cuda::synchronise(nullptr);
    count.download(counts);
    return counts;
  }

 private:
  void form_weights(int64_t g) {
    const int64_t group = shape.query_heads / shape.kv_heads;
    weights.emplace_back(group * shape.window, shape.tokens);
    logit_errors.emplace_back(group * shape.window, shape.tokens);
    for (int64_t h = 0; h < group; ++h) {
      const MatrixView head = queries.slice(g * group + h);
      const Matrix logits = reference::attention_logits(head, keys.slice(g), scale);
      const Matrix errors =
          reference::logit_errors(head, keys.slice(g), scale, reference::single_precision());
      for (int64_t i = 0; i < shape.window; ++i) {
        const int64_t row = h * shape.window + i;
        const int64_t visible = shape.tokens - shape.window + i + 1;
        log_sum_exp.push_back(static_cast<float>(log_sum(logits.row(i).first(visible))));
        for (int64_t j = 0; j < visible; ++j) {
          weights.back().row(row)[j] = std::exp(logits.row(i)[j] - log_sum_exp.back());
          // The difference of logit and log-sum-exp is rounded too.
          logit_errors.back().row(row)[j] =
              errors.row(i)[j] +
              0x1p-23 * (std::abs(logits.row(i)[j]) + errors.row(i)[j] + std::abs(log_sum_exp.back()));
        }
      }
    }
  }
  static double log_sum(VectorView logits) {
    const double largest = *std::ranges::max_element(logits);
    double sum = 0;
    for (const double z : logits) sum += std::exp(z - largest);
    return largest + std::log(sum);
  }
  // The summed weights of the candidates.
  std::vector<double> mean_weights(int64_t g) const {
    std::vector<double> mean(shape.candidates());
    const Matrix& rows = weights[g];
    for (int64_t row = 0; row < rows.rows(); ++row) {
      for (size_t j = 0; j < mean.size(); ++j) mean[j] += rows.row(row)[shape.sinks + j];
    }
    return mean;
  }
};

// The attention mass of a row's entries, and a bound on its error in fp32.
struct Mass {
  double mass = 0, error = 0;
};

template <cuda::Storage T>
Mass mass_of(const AdaptiveInput<T>& input, size_t g, int64_t row, int64_t count) {
  constexpr double kUnit = 0x1p-24, kExponential = 0x1p-22, kSmallest = 0x1p-126;
  std::vector<int64_t> entries = input.always_kept();
  entries.insert(entries.end(), input.ranked[g].begin(), input.ranked[g].begin() + count);
  double mass = 0, most = 0;
  for (const int64_t j : entries) {
    const double weight = input.weights[g](row, j);
    mass += weight;
    most += weight * std::exp(input.logit_errors[g](row, j)) * (1 + kExponential);
  }
  const double additions = static_cast<double>(cuda::adaptive_stage_one_depth(std::ssize(entries)));
  const double adding = additions * kUnit / (1 - additions * kUnit);
  const double lost = 2 * static_cast<double>(entries.size()) * kSmallest;
  return {mass, (most - mass) + adding * most + lost + 0x1p-40 * mass};
}

// Whether the count may be right, given fp32's errors: with it every query's mass may exceed 1/2 (or it is
// k), and with one entry less some query's mass may not.
template <cuda::Storage T>
bool is_legal(const AdaptiveInput<T>& input, size_t g, int64_t count) {
  bool enough = true;
  bool one_less_may_fail = count == 0;
  for (int64_t row = 0; row < input.weights[g].rows(); ++row) {
    const Mass with = mass_of(input, g, row, count);
    enough &= with.mass > 0.5 - with.error;
    if (count == 0) continue;
    const Mass without = mass_of(input, g, row, count - 1);
    one_less_may_fail |= without.mass <= 0.5 + without.error;
  }
  return (enough || count == input.k[g]) && one_less_may_fail;
}

template <cuda::Storage T>
struct AdaptiveCheck {
  int inside = 0;  // number of counts that are neither 0 nor k

  void hold(const AdaptiveInput<T>& input) {
    const std::vector<int64_t> counts = input.device_counts();
    for (size_t g = 0; g < counts.size(); ++g) {
      const int64_t expected =
          reference::adaptive_stage_one(input.weights[g], input.always_kept(), input.ranked[g]);
      EXPECT_TRUE(0 <= counts[g] && counts[g] <= input.k[g] && is_legal(input, g, counts[g]))
          << "KV head " << g << " needs " << expected << ", not " << counts[g] << " of " << input.k[g];
      inside += 0 < counts[g] && counts[g] < input.k[g];
    }
  }
};

TYPED_TEST(AdaptiveStageOneParity, MatchesReferenceAcrossShapes) {
  AdaptiveCheck<TypeParam> check;
  for (const int64_t head_dim : {8, 10, 64, 80, 128, 256}) {
    for (const int64_t tokens : {1, 31, 32, 33, 300}) {
      for (const double sharpness : {0.5, 3.0}) {
        SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", " + std::to_string(tokens) + " tokens");
        const int64_t window = std::min<int64_t>(tokens, 9);
        check.hold(AdaptiveInput<TypeParam>({4, 2, head_dim, tokens, window, window}, sharpness, 0.9));
      }
    }
  }
  EXPECT_GE(check.inside, 10) << "hardly anything was compared";
}

TYPED_TEST(AdaptiveStageOneParity, MatchesReferenceWhateverIsAlwaysKept) {
  AdaptiveCheck<TypeParam> check;
  for (const int64_t recent : {0, 1, 100, 290, 300}) {
    for (const int64_t sinks : {0, 1, 40, 300}) {
      if (sinks + recent > 300) continue;
      for (const double share : {0.0, 0.3, 1.0}) {
        check.hold(AdaptiveInput<TypeParam>({2, 1, 64, 300, 17, recent, sinks}, 1, share));
      }
    }
  }
  EXPECT_GE(check.inside, 6);
}

TYPED_TEST(AdaptiveStageOneParity, MatchesReferenceOverManyTiles) {
  AdaptiveCheck<TypeParam> check;
  check.hold(AdaptiveInput<TypeParam>({2, 1, 16, 3000, 4, 4}, 0.2, 0.8));
  EXPECT_EQ(check.inside, 1);
}

TYPED_TEST(AdaptiveStageOneParity, NeedsNothingForNoQueries) {
  EXPECT_EQ(AdaptiveInput<TypeParam>({2, 1, 16, 40, 0, 8}, 1, 0.5).device_counts(), std::vector<int64_t>{0});
}

TYPED_TEST(AdaptiveStageOneParity, GivesTheSameUnderEverySchedule) {
  const AdaptiveInput<TypeParam> input({4, 2, 80, 400, 11, 11}, 1, 0.8);
  in_every_schedule([&] { return input.device_counts(); });
}

TYPED_TEST(AdaptiveStageOneParity, RefusesWhatDoesNotFit) {
  using T = TypeParam;
  const auto refusal = [](const Tensor& queries, const Tensor& keys, const cuda::AlwaysKept& always) {
    const Uploaded<T> q{queries.view()}, k{keys.view()};
    return test::message_of<ShapeMismatch>([&] {
      cuda::adaptive_stage_one<T>({q.view(), k.view(), 1}, nullptr, always, nullptr, 0, nullptr, nullptr, {},
                                  nullptr);
    });
  };
  const auto has = [](const std::string& text) { return testing::HasSubstr(text); };
  EXPECT_THAT(refusal(Tensor(3, 4, 8), Tensor(2, 9, 8), {}), has("3 query heads cannot share 2 KV heads"));
  EXPECT_THAT(refusal(Tensor(2, 4, 8), Tensor(2, 9, 7), {}), has("columns of queries"));
  EXPECT_THAT(refusal(Tensor(2, 10, 8), Tensor(2, 9, 8), {}), has("window is 10"));
  EXPECT_THAT(refusal(Tensor(2, 4, 8), Tensor(2, 9, 8), {10, 0}), has("sinks is 10"));
  EXPECT_THAT(refusal(Tensor(2, 4, 8), Tensor(2, 9, 8), {3, 7}), has("recent entries is 7"));
  EXPECT_THAT(refusal(Tensor(2, 4, 8), Tensor(2, 9, 8), {0, 4}), has("the workspace has 0 bytes"));
}

}  // namespace
}  // namespace kvbound::parity
