#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ranges>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/perturbation.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/measure/metrics.hpp>

#include "support/trace_layer.hpp"

namespace kvbound::sim::metrics_test {
namespace {

using test::column;
using test::matrix;
using Positions = std::vector<int64_t>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kUnit = 0x1p-53;

// One head, two prompt tokens and a decode step that attends to all three with weights 1/4, 1/2, 1/4.
traces::Layer hand_made_layer(const std::vector<double>& values, double second_key = std::log(2.0)) {
  traces::Layer layer;
  layer.shape = {1, 1, 1, 2};
  layer.prompt_tokens = 2;
  layer.window_queries = 1;
  layer.keys = column({0, second_key, 0});
  layer.values = column(values);
  layer.queries = column({1, 1});
  layer.output_projection = matrix({{1, -2}});  // the L1 norm of a projected value is 3 |value|
  return layer;
}

LayerRecord record(const std::vector<Positions>& kept, size_t steps,
                   const std::vector<Positions>& stage_one = {}) {
  LayerRecord record;
  record.prompt.kept = kept;
  record.prompt.stage_one = stage_one;
  record.steps.resize(steps);
  return record;
}

TEST(Ratio, OfZeroToZeroIsZeroAndOfAnythingElseToZeroUndefined) {
  EXPECT_EQ(ratio(3, 4), 0.75);
  EXPECT_EQ(ratio(0, 4), 0);
  EXPECT_EQ(ratio(0, 0), 0);
  EXPECT_TRUE(std::isnan(ratio(1, 0)));
  EXPECT_TRUE(std::isnan(ratio(kNan, 0)));
  EXPECT_TRUE(std::isnan(ratio(kNan, 1)));
}

TEST(Larger, IsNotANumberIfEitherIsNot) {
  EXPECT_EQ(larger(1, 2), 2);
  EXPECT_EQ(larger(2, 1), 2);
  EXPECT_TRUE(std::isnan(larger(kNan, 1)));
  EXPECT_TRUE(std::isnan(larger(1, kNan)));
}

TEST(Metrics, OfAHandMadeLayerAreThoseOfPaper) {
  // Token 0 is evicted: o = 4/4 + 2/2 + 1/4 = 9/4; without it the weights are 2/3 and 1/3 and o^ = 5/3.
  const LayerMetrics metrics = measure(hand_made_layer({4, 2, 1}), {record({{1}}, 1, {{1}})}).front();
  EXPECT_NEAR(metrics.perturbation(0, 0), 3 * (9.0 / 4 - 5.0 / 3), 16 * kUnit);
  EXPECT_NEAR(metrics.relative(0, 0), (9.0 / 4 - 5.0 / 3) / (9.0 / 4), 16 * kUnit);
  EXPECT_NEAR(metrics.kept_mass(0, 0), 0.75, 4 * kUnit);
  // 1/4 * 12 for the evicted token, and (1/4)/(3/4) of 1/2 * 6 + 1/4 * 3 for the kept ones
  EXPECT_NEAR(metrics.bound.value()(0, 0), 4.25, 32 * kUnit);
  EXPECT_NEAR(metrics.stage_one_mass.value()(0, 0), 0.75, 4 * kUnit) << "token 1 and the new one";
  EXPECT_NEAR(metrics.layer_perturbation[0], 1.75, 16 * kUnit);
  EXPECT_NEAR(metrics.layer_relative[0], 7.0 / 27, 16 * kUnit);
  EXPECT_FALSE(metrics.violates(0, 0));
}

TEST(Metrics, CountStageTwoOutOfTheStageOneMass) {
  const auto metrics = measure(hand_made_layer({4, 2, 1}),
                               {record({{0, 1}}, 1, {{0}}), record({{0, 1}}, 1, {{}}), record({{0, 1}}, 1)});
  EXPECT_NEAR(metrics[0].stage_one_mass.value()(0, 0), 0.5, 4 * kUnit);
  EXPECT_NEAR(metrics[1].stage_one_mass.value()(0, 0), 0.25, 4 * kUnit) << "new entries only";
  EXPECT_FALSE(metrics[2].stage_one_mass) << "a selection without stages";
}

TEST(Metrics, OfAWholeCacheAreZero) {
  const LayerMetrics metrics = measure(hand_made_layer({4, 2, 1}), {record({{0, 1}}, 1)}).front();
  EXPECT_EQ(metrics.perturbation(0, 0), 0);
  EXPECT_EQ(metrics.bound.value()(0, 0), 0);
  EXPECT_NEAR(metrics.kept_mass(0, 0), 1, 4 * kUnit);
}

TEST(Metrics, AreZeroOrUndefinedWhereTheOutputIsZero) {
  const LayerMetrics zero = measure(hand_made_layer({0, 0, 0}), {record({{1}}, 1)}).front();
  EXPECT_EQ(zero.relative(0, 0), 0);
  EXPECT_EQ(zero.layer_relative[0], 0);
  EXPECT_FALSE(zero.violates(0, 0));
  const LayerMetrics cancelled = measure(hand_made_layer({1, -1, 0}, 0), {record({{1}}, 1)}).front();
  EXPECT_NEAR(cancelled.perturbation(0, 0), 1.5, 16 * kUnit) << "o = 0, but o^ = -1/2";
  EXPECT_TRUE(std::isnan(cancelled.relative(0, 0)));
  EXPECT_TRUE(std::isnan(cancelled.layer_relative[0]));
}

TEST(Metrics, OfNoStepsAreEmpty) {
  const LayerMetrics metrics = measure(hand_made_layer({4, 2, 1}), {record({{1}}, 0)}).front();
  EXPECT_EQ(metrics.perturbation.rows(), 0);
  EXPECT_EQ(metrics.perturbation.cols(), 1);
  EXPECT_TRUE(metrics.layer_perturbation.empty());
  EXPECT_TRUE(measure(hand_made_layer({4, 2, 1}), {}).empty());
}

// A layer of 2 KV heads with 2 query heads each, more steps than one block of rows.
traces::Layer random_layer(uint64_t seed) {
  return test::random_trace_layer({4, 2, 5, 7}, 0.75, 40, 3, 35, seed);
}

// The same quantities for one query, computed by the reference's functions.
struct Direct {
  Direct(const traces::Layer& layer, int64_t t, int64_t h, const Positions& residents) {
    const int64_t position = layer.prompt_tokens + t;
    const int64_t g = layer.shape.kv_head_of(h);
    const MatrixView query = layer.queries.slice(h).middle_rows(layer.window_queries + t, 1);
    const MatrixView keys = layer.keys.slice(g).middle_rows(0, position + 1);
    const MatrixView values = layer.values.slice(g).middle_rows(0, position + 1);
    const MatrixView projection =
        layer.output_projection.view().middle_rows(h * layer.shape.head_dim, layer.shape.head_dim);
    const Matrix logits = reference::attention_logits(query, keys, layer.scale);
    const Matrix weights = reference::attention_weights(query, keys, layer.scale, position);
    const auto eviction = reference::eviction_weights(logits.row(0), weights.row(0), residents);
    perturbation = reference::output_perturbation(eviction, values, projection);
    bound = reference::perturbation_bound(eviction,
                                          reference::projected_value_norms(values, projection, Norm::l1));
    kept_mass = eviction.kept_mass;
    const reference::RoundingScale scale = reference::rounding_scale(values, projection);
    rounding = reference::perturbation_rounding(eviction, scale);

    // Logits of either computation are off by at most d, so weights by a factor of e^(4 d) and by their own
    // roundings; every quantity is a sum whose terms are at most |w| times the absolute projections.
    double largest = 0;
    for (int64_t j = 0; j < keys.rows; ++j) {
      double sum = 0;
      for (int64_t c = 0; c < keys.cols; ++c) sum += std::abs(query(0, c) * keys(j, c));
      largest = std::max(largest, layer.scale * sum);
    }
    const double d = static_cast<double>(keys.cols + 3) * kUnit * largest;
    weight_error = 5 * d + 4 * static_cast<double>(position + 8) * kUnit;
    double terms = 0;
    for (size_t j = 0; j < eviction.weights.size(); ++j)
      terms += std::abs(eviction.weights[j]) * scale.absolute_projections[j];
    tolerance = 2 * rounding + 2 * weight_error * terms;
  }

  double perturbation, bound, kept_mass, rounding, weight_error, tolerance;
};

void expect_direct_figures(const traces::Layer& layer, const LayerMetrics& metrics, int64_t t, int64_t h,
                           const Positions& residents) {
  const Direct direct(layer, t, h, residents);
  ASSERT_GT(direct.perturbation, 1e-3);
  EXPECT_NEAR(metrics.perturbation(t, h), direct.perturbation, direct.tolerance)
      << "step " << t << ", head " << h;
  EXPECT_NEAR(metrics.bound.value()(t, h), direct.bound, direct.tolerance);
  EXPECT_NEAR(metrics.kept_mass(t, h), direct.kept_mass, 2 * direct.weight_error);
  EXPECT_NEAR(metrics.rounding.value()(t, h), direct.rounding, 1e-9 * direct.rounding);
  EXPECT_LE(metrics.perturbation(t, h), metrics.bound.value()(t, h) + metrics.rounding.value()(t, h));
}

TEST(Metrics, AreWhatTheReferenceSaysOfEachQueryAlone) {
  const traces::Layer layer = random_layer(1);
  const std::vector<LayerRecord> records{record({{0, 7, 8, 39}, {1, 2, 38, 39}}, 35),
                                         record({{39}, {0}}, 35)};
  const std::vector<LayerMetrics> metrics = measure(layer, records);
  for (size_t r = 0; r < records.size(); ++r) {
    for (int64_t t = 0; t < 35; ++t) {
      for (int64_t h = 0; h < 4; ++h) {
        Positions residents = records[r].prompt.kept[h / 2];
        for (int64_t s = 0; s <= t; ++s) residents.push_back(40 + s);
        expect_direct_figures(layer, metrics[r], t, h, residents);
      }
    }
  }
}

TEST(RunRecall, IsTheShareKeptOfThoseWhoseEvictionMovesTheFirstStepMost) {
  // Without token 0 the output changes from 9/4 to 5/3, without token 1 to 5/2: evicting
  // token 0 changes it most.
  const traces::Layer layer = hand_made_layer({4, 2, 1});
  const std::vector<LayerRecord> records{record({{0}}, 1), record({{1}}, 1), record({{0, 1}}, 1)};
  const auto shares = [&](int64_t recall_of) {
    std::vector<double> all;
    for (const LayerMetrics& metrics : measure(layer, records, {}, recall_of)) {
      EXPECT_EQ(metrics.recall.size(), 1u);
      all.push_back(metrics.recall.front());
    }
    return all;
  };
  EXPECT_EQ(shares(1), (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(shares(2), (std::vector<double>{0.5, 0.5, 1}));
  EXPECT_EQ(shares(40), shares(2)) << "there are no more entries than 2";
}

TEST(RunRecall, IsEmptyUnlessAskedForAndWithoutAStep) {
  const traces::Layer layer = hand_made_layer({4, 2, 1});
  EXPECT_TRUE(measure(layer, {record({{0}}, 1)}).front().recall.empty());
  EXPECT_TRUE(measure(layer, {record({{0}}, 0)}, {}, 1).front().recall.empty());
}

TEST(RunRecall, IsUndefinedWhereErrorsAreTooLargeForADouble) {
  const LayerMetrics metrics = measure(hand_made_layer({1e200, 2, 1}), {record({{1}}, 1)}, {}, 1).front();
  ASSERT_EQ(metrics.recall.size(), 1u);
  EXPECT_TRUE(std::isnan(metrics.recall.front()));
  EXPECT_GT(metrics.perturbation(0, 0), 1e199) << "what can be measured is";
}

TEST(RunRecall, AddsErrorsUpOverTheQueryHeadsOfAKvHead) {
  // Head 0 attends equally to all and changes most without token 0; head 1 attends almost only to token 1,
  // and without it changes more.
  traces::Layer layer = hand_made_layer({4, 2, 1}, 10);
  layer.shape = {2, 1, 1, 2};
  layer.queries = Tensor(2, 2, 1);
  layer.queries.slice(1)(1, 0) = 1;
  layer.output_projection = matrix({{1, -2}, {1, -2}});
  // head 0: o = 7/3, without 0: 3/2, without 1: 5/2; head 1: o = 2, nearly; without 0: 2, without 1: 5/2
  // sums, nearly: token 0 25/36, token 1 1/36 + 1/4
  EXPECT_EQ(measure(layer, {record({{0}}, 1)}, {}, 1).front().recall.front(), 1);
  layer.values.numbers()[1] =
      -2;  // head 0: o = 1, without 0: -1/2, without 1: 5/2; head 1: o = -2; without 1: 5/2
  EXPECT_EQ(measure(layer, {record({{0}}, 1)}, {}, 1).front().recall.front(), 0) << "9/4 + 81/4 beat 9/4";
}

TEST(Metrics, NoLongerCountWhoLeftAfterThatStep) {
  const traces::Layer layer = random_layer(2);
  LayerRecord leaving = record({{0, 7, 39}, {1, 38, 39}}, 3);
  leaving.steps[0].evicted = {7, -1};   // seen by the query of step 0, but not at step 1
  leaving.steps[1].evicted = {40, 38};  // the first decoded token is evicted from KV head 0
  leaving.steps[2].evicted = {0, 0};
  const LayerMetrics metrics = measure(layer, {leaving}).front();
  const std::vector<std::vector<Positions>> residents{{{0, 7, 39, 40}, {1, 38, 39, 40}},
                                                      {{0, 39, 40, 41}, {1, 38, 39, 40, 41}},
                                                      {{0, 39, 41, 42}, {1, 39, 40, 41, 42}}};
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      expect_direct_figures(layer, metrics, t, h, residents[t][h / 2]);
    }
  }
}

// Three tokens of weights 1/4, 1/2 and 1/4; token 0 was merged into token 1. The recorded output is 2.
TEST(Metrics, OfARunThatMergesAreTakenFromItsOutputs) {
  LayerRecord merging = record({{1}}, 1, {{1}});
  merging.prompt.merges.resize(1);
  merging.steps[0].output = matrix({{2}});
  const LayerMetrics metrics = measure(hand_made_layer({4, 2, 1}), {merging}).front();
  EXPECT_NEAR(metrics.perturbation(0, 0), 3 * (9.0 / 4 - 2), 16 * kUnit);
  EXPECT_NEAR(metrics.relative(0, 0), 1.0 / 9, 16 * kUnit);
  EXPECT_NEAR(metrics.kept_mass(0, 0), 0.75, 4 * kUnit)
      << "of the original entries at the positions that stayed";
  EXPECT_NEAR(metrics.stage_one_mass.value()(0, 0), 0.75, 4 * kUnit);
  EXPECT_NEAR(metrics.layer_perturbation[0], 0.75, 16 * kUnit);
  EXPECT_FALSE(metrics.bound) << "theta is of eviction";
  EXPECT_FALSE(metrics.rounding);
  EXPECT_FALSE(metrics.violates(0, 0));
}

TEST(Metrics, OfARunThatMergesFollowWhoIsThereAfterARebuild) {
  const traces::Layer layer = random_layer(6);
  LayerRecord merging = record({{0, 7, 39}, {1, 38, 39}}, 3);
  merging.prompt.merges.resize(2);
  for (StepRecord& step : merging.steps) step.output = Matrix(4, 5);
  merging.steps[0].evicted = {7, -1};
  merging.steps[1].evicted = {-1, -1};
  merging.steps[1].rebuilt = true;
  merging.steps[1].merges.resize(2);
  merging.steps[1].merges[0].positions = {3, 5, 40, 41};
  merging.steps[1].merges[1].positions = {1, 41};
  const LayerMetrics metrics = measure(layer, {merging}).front();
  const std::vector<std::vector<Positions>> residents{
      {{0, 7, 39, 40}, {1, 38, 39, 40}}, {{3, 5, 40, 41}, {1, 41}}, {{3, 5, 40, 41, 42}, {1, 41, 42}}};
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      const Direct direct(layer, t, h, residents[t][h / 2]);
      EXPECT_NEAR(metrics.kept_mass(t, h), direct.kept_mass, 2 * direct.weight_error);
      EXPECT_NEAR(metrics.relative(t, h), 1, 16 * kUnit) << "outputs of zero";
    }
  }
}

TEST(Metrics, SayHowManyEntriesEachKvHeadKeeps) {
  EXPECT_EQ(measure(random_layer(6), {record({{0, 7, 39}, {38}}, 2)}).front().kept, (Positions{3, 1}));
}

// Entries present at a rebuild count if its stage one has them; later entries always count.
TEST(Metrics, GoByTheStageOneOfTheLastRebuild) {
  const traces::Layer layer = random_layer(6);
  LayerRecord merging = record({{0, 7, 39}, {1, 38, 39}}, 4, {{0}, {38, 39}});
  merging.prompt.merges.resize(2);
  for (StepRecord& step : merging.steps) step.output = Matrix(4, 5);
  StepRecord& rebuilding = merging.steps[1];
  rebuilding.rebuilt = true;
  rebuilding.merges.resize(2);
  rebuilding.merges[0].positions = {3, 5, 40, 41};
  rebuilding.merges[1].positions = {1, 40, 41};
  rebuilding.stage_one = {{3, 41}, {1, 40, 41}};
  const LayerMetrics metrics = measure(layer, {merging}).front();
  const std::vector<std::vector<Positions>> of_stage_one{{{0, 40}, {38, 39, 40}},
                                                         {{3, 41}, {1, 40, 41}},
                                                         {{3, 41, 42}, {1, 40, 41, 42}},
                                                         {{3, 41, 42, 43}, {1, 40, 41, 42, 43}}};
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      const Direct direct(layer, t, h, of_stage_one[t][h / 2]);
      EXPECT_NEAR(metrics.stage_one_mass.value()(t, h), direct.kept_mass, 2 * direct.weight_error);
    }
  }
  merging.steps[1].stage_one.clear();
  EXPECT_EQ(test::message_of<ShapeMismatch>([&] { measure(layer, {merging}); }),
            "stage_one of a rebuild is 0 but kv_heads is 2");
}

// Stage one of every rebuild is chosen by the step's own query, and the measured masses are
// those of this stage one.
TEST(Metrics, OfAReplayThatRebuildsGoByStageOneOfTheCacheInUse) {
  constexpr int64_t kSteps = 5, kBudget = 12, kWindow = 3;
  const traces::Layer layer = random_layer(7);
  Policy policy{SnapKv{kWindow, 1}, {}, Critical{}, {}, {}};
  KeepKv method;
  method.threshold.reset();
  method.period = 2;
  policy.merge = method;
  const auto session = reference::make_session();
  LayerRecord replayed;
  replayed.prompt = session->compress(layer.prompt(), policy, Positions{kBudget, kBudget});
  for (int64_t t = 0; t < kSteps; ++t) replayed.steps.push_back(session->step(layer.step(t)));
  const LayerMetrics metrics = measure(layer, {replayed}).front();
  const int64_t n = layer.prompt_tokens, candidates = n - kWindow,
                one = (kBudget - kWindow) / 2;  // alpha is 1/2
  int64_t differ = 0;
  for (int64_t g = 0; g < 2; ++g) {
    Positions stage_one = replayed.prompt.stage_one[g];
    for (int64_t t = 0; t < kSteps; ++t) {
      Matrix scores(1, candidates);
      for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
        const Matrix weights =
            reference::attention_weights(layer.step(t).queries.middle_rows(h, 1),
                                         layer.keys.slice(g).middle_rows(0, n + t + 1), layer.scale, n + t);
        for (int64_t j = 0; j < candidates; ++j) scores(0, j) += weights(0, j) / 2;
      }
      if ((t + 1) % 2 == 0) {
        const Positions before = stage_one;
        stage_one = reference::select_top(scores.row(0), one);
        differ += !std::ranges::includes(before, stage_one);
      }
      Positions counted = stage_one;
      for (int64_t j = candidates; j <= n + t; ++j) counted.push_back(j);
      std::ranges::sort(counted);
      counted.erase(std::unique(counted.begin(), counted.end()), counted.end());
      for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
        const Direct direct(layer, t, h, counted);
        EXPECT_NEAR(metrics.stage_one_mass.value()(t, h), direct.kept_mass, 2 * direct.weight_error)
            << "step " << t << ", head " << h;
      }
    }
  }
  EXPECT_GT(differ, 0) << "else the prompt's stage one would do";
}

TEST(Metrics, OfALayerAreNormsOfTheSumOverHeads) {
  const traces::Layer layer = random_layer(3);
  const std::vector<Positions> kept{{0, 7, 8, 39}, {1, 2, 38, 39}};
  const LayerMetrics metrics = measure(layer, {record(kept, 2)}).front();
  for (int64_t t = 0; t < 2; ++t) {
    std::vector<double> change(7), whole(7);
    double terms = 0, error = 0;  // sums of absolute terms; their relative errors
    for (int64_t h = 0; h < 4; ++h) {
      const int64_t position = 40 + t;
      const MatrixView query = layer.queries.slice(h).middle_rows(3 + t, 1);
      const MatrixView values = layer.values.slice(h / 2).middle_rows(0, position + 1);
      const Matrix weights = reference::attention_weights(
          query, layer.keys.slice(h / 2).middle_rows(0, position + 1), layer.scale, position);
      Positions residents = kept[h / 2];
      for (int64_t s = 0; s <= t; ++s) residents.push_back(40 + s);
      const auto remaining = reference::kept_attention_weights(weights.row(0), residents);
      error = std::max(error, Direct(layer, t, h, residents).weight_error);
      for (int64_t j = 0; j <= position; ++j) {
        for (int64_t c = 0; c < 5; ++c) {
          for (int64_t m = 0; m < 7; ++m) {
            const double projected = values(j, c) * layer.output_projection(h * 5 + c, m);
            whole[m] += weights(0, j) * projected;
            change[m] += (weights(0, j) - remaining[j]) * projected;
            terms += (weights(0, j) + remaining[j]) * std::abs(projected);
          }
        }
      }
    }
    const auto l1 = [](const std::vector<double>& numbers) {
      return std::accumulate(numbers.begin(), numbers.end(), 0.0,
                             [](double sum, double x) { return sum + std::abs(x); });
    };
    const double tolerance = 2 * (error + 4 * 42 * 5 * kUnit) * terms;
    const double perturbation = metrics.layer_perturbation[t];
    EXPECT_NEAR(perturbation, l1(change), tolerance);
    EXPECT_NEAR(perturbation / metrics.layer_relative[t], l1(whole), tolerance);
  }
}

TEST(Metrics, OfAStepDoNotDependOnHowManyFollow) {
  const traces::Layer layer = random_layer(5);
  const std::vector<Positions> kept{{0, 7, 8, 39}, {1, 2, 38, 39}};
  const LayerMetrics all = measure(layer, {record(kept, 35, kept)}).front();
  for (const int64_t steps : {1, 2, 31, 32, 33}) {
    const LayerMetrics some = measure(layer, {record(kept, static_cast<size_t>(steps), kept)}).front();
    const auto equals_part = [steps](const Matrix& matrix, const Matrix& whole) {
      return std::ranges::equal(matrix.numbers(), whole.numbers().first(steps * 4));
    };
    EXPECT_TRUE(equals_part(some.perturbation, all.perturbation)) << steps << " steps";
    EXPECT_TRUE(equals_part(some.relative, all.relative));
    EXPECT_TRUE(equals_part(some.bound.value(), all.bound.value()));
    EXPECT_TRUE(equals_part(some.kept_mass, all.kept_mass));
    EXPECT_TRUE(equals_part(some.stage_one_mass.value(), all.stage_one_mass.value()));
    const auto equals_first = [steps](const std::vector<double>& numbers, const std::vector<double>& whole) {
      return std::ranges::equal(numbers, VectorView(whole).first(steps));
    };
    EXPECT_TRUE(equals_first(some.layer_perturbation, all.layer_perturbation));
    EXPECT_TRUE(equals_first(some.layer_relative, all.layer_relative));
  }
}

TEST(Metrics, DoNotDependOnWhatElseIsMeasuredOrOnNormsComputedBefore) {
  const traces::Layer layer = random_layer(4);
  const LayerRecord first = record({{0, 7, 8, 39}, {1, 2, 38, 39}}, 35);
  const LayerMetrics alone = measure(layer, {first}).front();
  const Matrix norms = reference::projected_value_norms(layer.shape, layer.values.view().middle_rows(0, 40),
                                                        layer.output_projection, Norm::l1);
  for (const LayerMetrics& metrics :
       {measure(layer, {record({{39}, {0}}, 35), first}).back(), measure(layer, {first}, norms).front()}) {
    EXPECT_TRUE(std::ranges::equal(metrics.perturbation.numbers(), alone.perturbation.numbers()));
    EXPECT_TRUE(std::ranges::equal(metrics.bound->numbers(), alone.bound->numbers()));
    EXPECT_TRUE(std::ranges::equal(metrics.kept_mass.numbers(), alone.kept_mass.numbers()));
    EXPECT_EQ(metrics.layer_perturbation, alone.layer_perturbation);
  }
}

}  // namespace
}  // namespace kvbound::sim::metrics_test
