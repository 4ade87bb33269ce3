// theta of runs that merge, over the original entries.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/measure/merged_bound.hpp>
#include <kvbound/sim/measure/metrics.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/trace_layer.hpp"

namespace kvbound::sim::merged_bound_test {
namespace {

using test::column;
using test::matrix;

constexpr double kUnit = 0x1p-53;
constexpr int64_t kPrompt = 40, kSteps = 12, kBudget = 12;

// Equal attention on all entries. Token 1 is merged into token 0, with twice its weight.
traces::Layer equal_layer() {
  traces::Layer layer;
  layer.shape = {1, 1, 1, 1};
  layer.prompt_tokens = 2;
  layer.window_queries = 1;
  layer.keys = column({0, 0, 0});
  layer.values = column({4, 1, 8});
  layer.queries = column({1, 1});
  layer.output_projection = matrix({{3}});
  return layer;
}

LayerRecord merged_record(double value, double output) {
  LayerRecord record;
  record.merge = KeepKv{};
  record.prompt.kept = {{0}};
  record.prompt.merges = {{{{0, {1}, matrix({{0, std::log(2.0)}})}},
                           {.leaving = 1, .merged = 1, .clusters = 1},
                           {0},
                           {2},
                           matrix({{0}}),
                           matrix({{value}})}};
  record.steps.resize(1);
  record.steps[0].output = matrix({{output}});
  return record;
}

TEST(MergedBound, OfAHandMadeMergeIsThatOfPaper) {
  // A = 1/3 each; the merged entry has 2/3, of which 1/3 and 2/3 are its members': b = 2/9, 4/9, 1/3.
  const LayerMetrics metrics = measure(equal_layer(), {merged_record(2, 4)}, {}, 0, nullptr, true).front();
  EXPECT_NEAR(metrics.perturbation(0, 0), 1, 32 * kUnit);
  EXPECT_NEAR(metrics.bound.value()(0, 0), 3 * (4.0 + 1) / 9, 32 * kUnit);
  EXPECT_NEAR(metrics.centred_bound.value()(0, 0), 3 * (1.0 / 3 + 10.0 / 3) / 9, 32 * kUnit)
      << "from 13/3, the output";
  EXPECT_FALSE(metrics.violates(0, 0));
}

TEST(MergedBound, CountsAValueThatIsNoMeanAsItIs) {
  const LayerMetrics metrics = measure(equal_layer(), {merged_record(2.5, 13.0 / 3)}).front();
  EXPECT_NEAR(metrics.bound.value()(0, 0), 3 * (4.0 + 1) / 9 + 3 * 2.0 / 3 * 0.5, 32 * kUnit);
}

TEST(MergedBound, TellsAViolationFromRounding) {
  for (const double off : {-1e-12, 1e-12})
    EXPECT_FALSE(measure(equal_layer(), {merged_record(2, 4 + off)}).front().violates(0, 0)) << "far within";
  // L = 5/3 where the output is 13/3 - 5/9.
  const double attained = 13.0 / 3 - 5.0 / 9;
  EXPECT_FALSE(measure(equal_layer(), {merged_record(2, attained)}).front().violates(0, 0));
  EXPECT_TRUE(measure(equal_layer(), {merged_record(2, attained - 1e-10)}).front().violates(0, 0));
}

TEST(MergedBound, IsAbsentWithoutTheMerge) {
  LayerRecord record = merged_record(2, 4);
  record.merge.reset();
  const LayerMetrics metrics = measure(equal_layer(), {record}, {}, 0, nullptr, true).front();
  EXPECT_FALSE(metrics.bound || metrics.rounding || metrics.centred_bound);
  EXPECT_FALSE(metrics.violates(0, 0));
}

class Merging : public testing::TestWithParam<const char*> {
 protected:
  Merging() {
    record_.prompt = session_->compress(layer_.prompt(), policy_, std::vector(2, kBudget));
    for (int64_t t = 0; t < kSteps; ++t) record_.steps.push_back(session_->step(layer_.step(t)));
    record_.merge = policy_.merge;
  }

  const traces::Layer layer_ = test::random_trace_layer({6, 2, 8, 10}, 0.5, kPrompt, 8, kSteps, 5);
  const Policy policy_ = parse_policy(GetParam());
  std::unique_ptr<Session> session_ = reference::make_session();
  LayerRecord record_;
};

// The weights of the original entries give the recorded outputs.
TEST_P(Merging, WeighsOriginalEntries) {
  const Matrix row_norms = reference::projection_row_norms(layer_.output_projection, 8);
  for (int64_t h = 0; h < 6; ++h) {
    const MatrixView keys = layer_.keys.slice(h / 3), values = layer_.values.slice(h / 3);
    const reference::RoundingScale scale =
        reference::rounding_scale(values, layer_.output_projection.view().middle_rows(8 * h, 8));
    MergedBound bound(layer_, record_, h, scale, row_norms.row(h));
    for (int64_t t = 0; t < kSteps; ++t) {
      const int64_t tokens = kPrompt + t + 1;
      const Matrix attention =
          reference::attention_weights(layer_.queries.slice(h).middle_rows(8 + t, 1),
                                       keys.middle_rows(0, tokens), layer_.scale, tokens - 1);
      const MergedChange change = bound.at(t, attention.row(0));
      EXPECT_LE(change.rest, 1e-12) << "values are sums of originals";
      for (int64_t c = 0; c < 8; ++c) {
        double output = 0;
        for (int64_t j = 0; j < tokens; ++j)
          output += (attention(0, j) - change.weights.weights[j]) * values(j, c);
        EXPECT_NEAR(output, record_.steps[t].output(h, c), 1e-12) << "head " << h << ", step " << t;
      }
    }
  }
}

TEST_P(Merging, IsBoundedByBothBounds) {
  const LayerMetrics metrics = measure(layer_, {record_}, {}, 0, nullptr, true).front();
  const bool spreads = std::string(GetParam()).find("cam") != std::string::npos;
  ASSERT_EQ(metrics.centred_bound.has_value(), !spreads);
  double change = 0, bound = 0, centred = 0;
  for (int64_t t = 0; t < kSteps; ++t) {
    for (int64_t h = 0; h < 6; ++h) {
      EXPECT_FALSE(metrics.violates(t, h));
      EXPECT_LT((*metrics.rounding)(t, h), 1e-9 * (*metrics.bound)(t, h));
      change += metrics.perturbation(t, h);
      bound += (*metrics.bound)(t, h);
      if (!spreads) centred += (*metrics.centred_bound)(t, h);
    }
  }
  EXPECT_GT(change, 0.1 * bound) << "a bound that says something";
  if (!spreads) {
    EXPECT_LT(change, centred);
    EXPECT_GT(change, 0.1 * centred);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Policies, Merging,
    testing::Values("snapkv:window=4+keepkv:threshold=none", "h2o:window=4+keepkv:threshold=0.1",
                    "h2o:window=4+keepkv:threshold=none:gqa=mean:key=zip",
                    "tova+keepkv:threshold=none:predict=current:scores=raw",
                    "snapkv:window=4+keepkv:threshold=none:order=merge-first",
                    "h2o:window=4+keepkv:threshold=none:period=5", "h2o:window=4+convex:threshold=none",
                    "tova+d2o:threshold=none", "h2o:window=4+kvmerger:threshold=none", "h2o:window=4+cam",
                    "tova+cam:neighbours=3", "snapkv:window=4+adakv+d2o:threshold=none"),
    [](const auto& policy) {
      std::string name = policy.param;
      std::ranges::replace_if(
          name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
      return name;
    });

}  // namespace
}  // namespace kvbound::sim::merged_bound_test
