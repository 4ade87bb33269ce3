// Predicted scores on the device within the bounds of a moving average, after a prompt
// and through decode steps.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/score_ema.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/score_ema.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "distributions.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

cuda::Buffer<float> log_seen(const PredictedScores& options, int64_t tokens, int64_t kv_heads = 1) {
  return cuda::upload(std::vector<float>(kv_heads, cuda::log_seen_share(options, tokens)));
}

struct Case {
  int64_t kv_heads = 2;
  int64_t group_size = 2;
  int64_t head_dim = 10;
  int64_t window = 8;
  int64_t tokens = 33;
  PredictedScores options = {};
  Distribution distribution = Distribution::random;

  LayerShape shape() const { return {kv_heads * group_size, kv_heads, head_dim, 1}; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

std::string text_of(const Case& c) {
  return std::string(name(c.distribution)) + (c.options.scores == ScoreKind::raw ? ", raw" : "") +
         (c.options.normalisation == Normalisation::paper ? ", paper" : "") + ", ema " +
         std::to_string(c.options.ema) + ", window " + std::to_string(c.window) + " of " +
         std::to_string(c.tokens) + ", head_dim " + std::to_string(c.head_dim);
}

// Averages in device memory, recognisable where they are not written.
struct Averages {
  Output exponents, mantissas, weights;
  int64_t capacity;

  Averages(const LayerShape& shape, int64_t entries)
      : exponents(shape.query_heads * entries),
        mantissas(shape.query_heads * entries),
        weights(shape.kv_heads * entries),
        capacity(entries) {}
  cuda::ScoreAverages view() { return {exponents.data(), mantissas.data(), weights.data(), capacity}; }
};

// 2 max |z| + ln n bounds |ln s|.
double largest_score(double largest_logit, int64_t tokens) {
  return 2 * largest_logit + std::log(static_cast<double>(tokens));
}

template <class T>
class ScoreEmaParity : public DeviceTest {
 protected:
  struct Subject {
    Case c;
    Tensor queries, keys;

    explicit Subject(const Case& given)
        : c(given), queries(rounded<T>(random_tensor(1, c.shape().query_heads, c.window, c.head_dim))) {
      Matrix first;
      for (int64_t g = 0; g < c.kv_heads; ++g) first.append_row(queries.slice(g * c.group_size).row(0));
      keys = rounded<T>(keys_of(c.distribution, 2, first, c.tokens, c.scale()));
    }
    LayerView layer() const { return {c.shape(), c.scale(), keys, keys, queries, {}}; }

    // ln s^ [query_heads, tokens + 2], of the tokens only.
    std::vector<float> predicted() const {
      const Uploaded<T> device_queries(queries), device_keys(keys);
      const cuda::WindowView<T> window{device_queries.view(), device_keys.view(), c.scale()};
      const int64_t heads = c.shape().query_heads;
      Output log_sum_exp(heads * c.window), result(heads * (c.tokens + 2));
      WorkingMemory sums(cuda::window_log_sum_exp_workspace(heads, c.window, c.tokens)),
          memory(cuda::prompt_averages_workspace<T>(heads, c.kv_heads, c.window, c.tokens));
      cuda::window_log_sum_exp(window, log_sum_exp.data(), sums.view(), nullptr);
      Averages averages(c.shape(), c.tokens + 2);
      cuda::prompt_averages<T>(c.options, window, log_sum_exp.data(), averages.view(), memory.view(),
                               nullptr);
      const cuda::Buffer<int64_t> count = cuda::upload(std::vector<int64_t>(c.kv_heads, c.tokens));
      cuda::predicted_scores(c.options, averages.view(), heads, c.kv_heads, count.data(),
                             log_seen(c.options, c.tokens, c.kv_heads).data(), result.data(), nullptr);
      return result.numbers();
    }
  };

  void expect_parity(const Case& c) {
    SCOPED_TRACE(text_of(c));
    const Subject subject(c);
    const std::vector<float> predicted = in_every_schedule([&] { return subject.predicted(); });
    const LayerView layer = subject.layer();
    const reference::Arithmetic arithmetic =
        reference::arithmetic_of(cuda::window_arithmetic<T>(c.tokens, c.head_dim));
    const Matrix sums = reference::window_log_sum_exp_errors(layer, c.window, arithmetic);
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      const Matrix expected = reference::prompt_ema(layer, g, c.options).log_predicted(c.tokens);
      for (int64_t i = 0; i < c.group_size; ++i) {
        const int64_t h = g * c.group_size + i;
        const Matrix logits =
            reference::attention_logits(layer.queries.slice(h), layer.keys.slice(g), c.scale());
        const Matrix off =
            reference::logit_errors(layer.queries.slice(h), layer.keys.slice(g), c.scale(), arithmetic);
        const double average = reference::score_ema_error(
            c.window, c.options.ema, largest_score(reference::max_abs(logits.numbers()), c.tokens),
            arithmetic);
        std::vector<double> errors(c.tokens, average);
        for (int64_t j = 0; j < c.tokens; ++j) {
          double own = 0;
          for (int64_t q = 0; q < c.window; ++q) {
            own = std::max(own, off(q, j) + (c.options.scores == ScoreKind::raw ? 0 : sums(h, q)));
          }
          errors[j] += own;
        }
        const std::span<const float> row = std::span(predicted).subspan(h * (c.tokens + 2), c.tokens + 2);
        EXPECT_TRUE(scores_.hold(row.first(c.tokens), expected.row(i), errors));
        EXPECT_TRUE(Output::is_unwritten(row[c.tokens]) && Output::is_unwritten(row[c.tokens + 1]));
      }
    }
  }

  Comparator scores_{"predicted_scores " + StorageName::GetName<T>(0)};
};
TYPED_TEST_SUITE(ScoreEmaParity, StorageTypes, StorageName);

TYPED_TEST(ScoreEmaParity, MatchesReferenceAcrossSizes) {
  for (const int64_t tokens : {2, 31, 32, 33, 64, 65, 200}) {
    for (const int64_t window : {1, 8, 33, 65}) {
      if (window <= tokens) this->expect_parity({.window = window, .tokens = tokens});
    }
  }
  EXPECT_TRUE(this->scores_.is_tight());
}

TYPED_TEST(ScoreEmaParity, MatchesReferenceForEveryOption) {
  for (const double ema : {0.0, 1e-30, 0.5, 0.9, 0.999}) {
    for (const ScoreKind scores : {ScoreKind::attention, ScoreKind::raw}) {
      for (const Normalisation normalisation : {Normalisation::exact, Normalisation::paper}) {
        this->expect_parity({.window = 20, .options = {Prediction::ema, ema, scores, normalisation}});
      }
    }
  }
}

TYPED_TEST(ScoreEmaParity, MatchesReferenceAcrossDistributionsAndHeadDims) {
  for (const Distribution distribution : kDistributions) {
    this->expect_parity({.tokens = 70, .distribution = distribution});
    this->expect_parity({.tokens = 70,
                         .options = {Prediction::ema, 0.9, ScoreKind::raw, Normalisation::exact},
                         .distribution = distribution});
  }
  for (const int64_t head_dim : {1, 8, 64, 80, 128, 256}) this->expect_parity({.head_dim = head_dim});
  for (const int64_t group_size : {1, 5}) this->expect_parity({.group_size = group_size});
}

TYPED_TEST(ScoreEmaParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> queries(Tensor(2, 3, 8)), keys(Tensor(2, 9, 8)), narrow(Tensor(2, 9, 7));
  const auto call = [&](const Uploaded<T>& own, int64_t capacity, cuda::Workspace memory) {
    cuda::prompt_averages<T>({}, {queries.view(), own.view(), 1}, nullptr,
                             {nullptr, nullptr, nullptr, capacity}, memory, nullptr);
  };
  WorkingMemory memory(cuda::prompt_averages_workspace<T>(2, 2, 3, 9));
  EXPECT_THROW(call(narrow, 9, memory.view()), ShapeMismatch);
  EXPECT_THROW(call(keys, 8, memory.view()), ShapeMismatch);
  if constexpr (std::is_same_v<T, float>) {
    EXPECT_THROW(call(keys, 9, {}), ShapeMismatch);
  }
}

class ObserveScoresParity : public DeviceTest {};

// Decode steps over a cache in which a new entry takes the slot of an evicted one.
TEST_F(ObserveScoresParity, FollowsTheReferenceThroughDecodeSteps) {
  constexpr int64_t kEntries = 37, kHeads = 3, kSteps = 40;
  Comparator comparator("observe_scores");
  for (const ScoreKind scores : {ScoreKind::attention, ScoreKind::raw}) {
    for (const double ema : {0.0, 0.9}) {
      const Normalisation normalisation =
          scores == ScoreKind::raw ? Normalisation::paper : Normalisation::exact;
      const PredictedScores options{Prediction::ema, ema, scores, normalisation};
      reference::ScoreEma expected(options, kHeads);
      for (int64_t slot = 0; slot < kEntries; ++slot) expected.append();
      cuda::Buffer<float> exponents = cuda::upload(
                              std::vector<float>(kHeads * kEntries, -std::numeric_limits<float>::infinity())),
                          mantissas = cuda::upload(std::vector<float>(kHeads * kEntries, 0)),
                          weights = cuda::upload(std::vector<float>(kEntries, 0));
      const cuda::ScoreAverages averages{exponents.data(), mantissas.data(), weights.data(), kEntries};
      cuda::Buffer<int64_t> entries = cuda::upload(std::vector<int64_t>{kEntries});
      const cuda::Buffer<float> seen = log_seen(options, kSteps);
      Output predicted(kHeads * kEntries);
      double largest = 0;
      for (int64_t t = 0; t < kSteps; ++t) {
        const int64_t newest = t % 3 == 2 ? (7 * t) % kEntries : -1;
        cuda::Buffer<int64_t> slot = cuda::upload(std::vector<int64_t>{newest});
        if (newest >= 0) {
          // The reference's new entry is the last one; the device's takes the slot.
          expected.remove(newest);
          expected.append();
          std::vector<int64_t> order(kEntries);
          for (int64_t i = 0; i < kEntries; ++i)
            order[i] = i == newest ? kEntries - 1 : i == kEntries - 1 ? newest : i;
          expected = expected.of(order);
        }
        const Tensor random = random_tensor(static_cast<uint64_t>(t), 1, kHeads, kEntries, 4);
        std::vector<float> logits;
        Matrix exact(kHeads, kEntries);
        std::vector<float> sums;
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t i = 0; i < kEntries; ++i) {
            logits.push_back(static_cast<float>(random.slice(0)(h, i)));
            exact(h, i) = logits.back();
          }
          sums.push_back(static_cast<float>(reference::log_sum_exp(exact.row(h))));
        }
        largest = std::max(largest, reference::max_abs(exact.numbers()));
        const cuda::Buffer<float> device_logits = cuda::upload(logits), device_sums = cuda::upload(sums);
        cuda::observe_scores(options, device_logits.data(), device_sums.data(),
                             {1, kEntries, entries.data(), nullptr, slot.data(), nullptr}, kHeads, averages,
                             seen.data(), t + 1 == kSteps ? predicted.data() : nullptr, nullptr);
        cuda::synchronise(nullptr);
        expected.observe_logits(exact);
      }
      Output result(kHeads * kEntries);
      cuda::predicted_scores(options, averages, kHeads, 1, entries.data(), seen.data(), result.data(),
                             nullptr);
      EXPECT_TRUE(same_bits(predicted.numbers(), result.numbers()));
      const double bound = reference::score_ema_error(kSteps, ema, largest_score(largest, kEntries),
                                                      reference::single_precision()) +
                           0x1p-22 * (largest + 8);
      const std::vector<double> bounds(kHeads * kEntries, bound);
      EXPECT_TRUE(comparator.hold(result.numbers(), expected.log_predicted(kSteps).numbers(), bounds));
    }
  }
  EXPECT_TRUE(comparator.is_tight());
}

// One score is so large that it outweighs all others, though it decays below the smallest number of single
// precision: in many steps, or in one.
TEST_F(ObserveScoresParity, KeepAPastThatOutweighsAllThatFollows) {
  struct {
    double ema;
    int64_t steps;
    float first, others;
  } const cases[] = {{0.3, 120, 300, 1}, {1e-30, 3, 300, 1}, {1e-30, 3, 100, -100}, {1e-200, 2, 900, -20}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.ema);
    const PredictedScores options{Prediction::ema, c.ema, ScoreKind::raw, Normalisation::exact};
    reference::ScoreEma expected(options, 1);
    expected.append();
    cuda::Buffer<float> exponents = cuda::upload(std::vector<float>{-std::numeric_limits<float>::infinity()}),
                        mantissas = cuda::upload(std::vector<float>{0}),
                        weights = cuda::upload(std::vector<float>{0});
    const cuda::ScoreAverages averages{exponents.data(), mantissas.data(), weights.data(), 1};
    cuda::Buffer<int64_t> entries = cuda::upload(std::vector<int64_t>{1}),
                          none = cuda::upload(std::vector<int64_t>{-1});
    for (int64_t t = 0; t < c.steps; ++t) {
      const float logit = t == 0 ? c.first : c.others;
      const cuda::Buffer<float> logits = cuda::upload(std::vector<float>{logit});
      cuda::observe_scores(options, logits.data(), nullptr,
                           {1, 1, entries.data(), nullptr, none.data(), nullptr}, 1, averages, nullptr,
                           nullptr, nullptr);
      cuda::synchronise(nullptr);
      const double exact = logit;
      expected.observe_logits({&exact, 1, 1, 1});
    }
    Output result(1);
    cuda::predicted_scores(options, averages, 1, 1, entries.data(), log_seen(options, c.steps).data(),
                           result.data(), nullptr);
    const double past = expected.log_predicted(c.steps)(0, 0);
    EXPECT_GT(past, c.others + 10) << "the past was to outweigh what follows";
    EXPECT_NEAR(result.numbers().front(), past,
                reference::score_ema_error(c.steps, c.ema, c.first, reference::single_precision()));
  }
}

class ReplaceScoresParity : public DeviceTest {};

TEST_F(ReplaceScoresParity, SetsThePredictionsOfMergedEntriesAlone) {
  constexpr int64_t kEntries = 40, kHeads = 3, kTokens = 50, kCapacity = 5;
  for (const Normalisation normalisation : {Normalisation::exact, Normalisation::paper}) {
    const PredictedScores options{Prediction::ema, 0.9, ScoreKind::raw, normalisation};
    std::vector<float> exponents(kHeads * kEntries, -3), mantissas(kHeads * kEntries, 0.5f),
        weights(kEntries, 0.4f);
    weights[7] = 0;  // no query has seen it
    cuda::Buffer<float> device_exponents = cuda::upload(exponents),
                        device_mantissas = cuda::upload(mantissas), device_weights = cuda::upload(weights);
    const cuda::ScoreAverages averages{device_exponents.data(), device_mantissas.data(),
                                       device_weights.data(), kEntries};
    // The second kept entry has no members.
    const std::vector<int64_t> into{12, 3, 7, 39, 0};
    cuda::Buffer<int64_t> offsets = cuda::upload(std::vector<int64_t>{0, 2, 2, 3, 5, 5}),
                          rows = cuda::upload(into);
    std::vector<float> scores;
    for (int64_t n = 0; n < kHeads * kCapacity; ++n) scores.push_back(-20 + static_cast<float>(n));
    const cuda::Buffer<float> device_scores = cuda::upload(scores);
    cuda::replace_scores(options, device_scores.data(),
                         {{}, {nullptr, 9, offsets.data(), kCapacity}, rows.data()}, kHeads, 1,
                         log_seen(options, kTokens).data(), averages, nullptr);
    Output result(kHeads * kEntries);
    const cuda::Buffer<int64_t> count = cuda::upload(std::vector<int64_t>{kEntries});
    cuda::predicted_scores(options, averages, kHeads, 1, count.data(), log_seen(options, kTokens).data(),
                           result.data(), nullptr);
    const std::vector<float> predicted = result.numbers();
    const std::vector<float> changed = cuda::download(device_exponents);
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t slot = 0; slot < kEntries; ++slot) {
        const int64_t place = h * kEntries + slot;
        const bool is_merged = slot == 12 || slot == 39;
        if (is_merged) {
          EXPECT_NEAR(predicted[place], scores[h * kCapacity + (slot == 12 ? 0 : 3)], 1e-5) << slot;
        } else {
          EXPECT_EQ(changed[place], -3) << slot;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbound::parity
