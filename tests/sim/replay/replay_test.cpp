#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/options/runs.hpp>
#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/traces/generate.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::sim::replay_test {
namespace {

constexpr int64_t kLayers = 2, kQueryHeads = 4, kSteps = 40;

class Replays : public ::testing::Test {
 protected:
  Replays() {
    traces::generate({.tokens = 60,
                      .decode = kSteps,
                      .layers = kLayers,
                      .query_heads = kQueryHeads,
                      .kv_heads = 2,
                      .head_dim = 8,
                      .model_dim = 16,
                      .window_queries = 8},
                     folder_.path("trace.safetensors"));
  }

  ReplayResult replayed(const std::vector<std::string>& policies, const std::vector<Budget>& budgets) const {
    const traces::Trace trace(folder_.path("trace.safetensors"));
    Scope scope;
    scope.layers = {0, 1};
    scope.steps = kSteps;
    return replay(
        trace, every_run(named_policies(policies, std::nullopt), budgets, {std::string(kReference)}), scope);
  }

 private:
  test::TemporaryFolder folder_;
};

std::map<std::string, int64_t> calls(const ReplayResult& result) {
  std::map<std::string, int64_t> calls;
  for (const OperationTimes::Entry& entry : result.times.front().operations.entries()) {
    calls[entry.operation] = entry.calls;
  }
  return calls;
}

const std::vector<std::string> kTenPolicies{"snapkv:window=8",
                                            "snapkv:window=8+critical",
                                            "snapkv:window=8+obcache-joint",
                                            "snapkv:window=8+exact",
                                            "snapkv:window=8+keepkv",
                                            "h2o:window=8:recent=8",
                                            "h2o:window=8:recent=8+critical",
                                            "h2o:window=8:recent=8+obcache-joint",
                                            "tova",
                                            "snapkv:window=8+critical:norm=l2"};

TEST_F(Replays, OfTenPoliciesComputeScoresNormsAndFullAttentionOnce) {
  const std::map<std::string, int64_t> ten =
      calls(replayed(kTenPolicies, {parse_budget("20%"), parse_budget("40%")}));
  EXPECT_EQ(ten.at("window_attention"), kLayers) << "of the one window";
  EXPECT_EQ(ten.at("window_scores"), kLayers * 2) << "joint and exact";
  EXPECT_EQ(ten.at("projected_value_norms"), kLayers * 2) << "in L1 and in L2";
  EXPECT_EQ(ten.at("score_ema"), kLayers);
  EXPECT_EQ(ten.at("full_attention"), kLayers * kQueryHeads * 2) << "of 32 steps, and of the other 8";
  EXPECT_EQ(ten.at("measurement"), kLayers);
  EXPECT_EQ(ten.at("merge_measurement"), kLayers * 2) << "of keepkv, at two budgets";
  EXPECT_EQ(ten.at("compaction"), kLayers * 2 * (10 + 4))
      << "of every run, and once more where decoding evicts";
  const std::map<std::string, int64_t> one = calls(replayed({kTenPolicies[1]}, {parse_budget("20%")}));
  for (const char* shared : {"window_attention", "full_attention", "measurement"})
    EXPECT_EQ(one.at(shared), ten.at(shared)) << shared;
}

TEST_F(Replays, OfAPolicyHaveTheSameNumbersAloneAndAmongOthers) {
  const std::vector<Budget> budget{parse_budget("30%")};
  const ReplayResult all = replayed(kTenPolicies, budget);
  for (size_t r = 0; r < kTenPolicies.size(); ++r) {
    const ReplayResult alone = replayed({kTenPolicies[r]}, budget);
    for (size_t l = 0; l < kLayers; ++l) {
      const LayerMetrics &own = alone.runs.front().layers[l], &among = all.runs[r].layers[l];
      EXPECT_TRUE(std::ranges::equal(own.perturbation.numbers(), among.perturbation.numbers()))
          << kTenPolicies[r];
      EXPECT_EQ(own.layer_perturbation, among.layer_perturbation);
      EXPECT_EQ(own.layer_relative, among.layer_relative);
      EXPECT_EQ(own.bound.has_value(), among.bound.has_value());
      if (own.bound) {
        EXPECT_TRUE(std::ranges::equal(own.bound->numbers(), among.bound->numbers()));
      }
    }
  }
}

// Of what is recorded and measured of a run and a layer, and where.
struct Seen {
  std::vector<std::pair<size_t, int64_t>> order;
  std::map<std::pair<size_t, int64_t>, std::vector<double>> numbers;

  ReplayObserver observer() {
    return {.recorded =
                [this](size_t run, int64_t layer, const LayerRecord& record) {
                  order.emplace_back(run, layer);
                  std::vector<double>& all = numbers[{run, layer}];
                  for (const StepRecord& step : record.steps) {
                    all.insert(all.end(), step.output.numbers().begin(), step.output.numbers().end());
                    all.insert(all.end(), step.evicted.begin(), step.evicted.end());
                  }
                  for (const double score : record.prompt.score.numbers()) all.push_back(score);
                },
            .measured =
                [this](size_t run, int64_t layer, const LayerMetrics& metrics) {
                  std::vector<double>& all = numbers[{run, layer}];
                  all.insert(all.end(), metrics.layer_perturbation.begin(), metrics.layer_perturbation.end());
                }};
  }
};

TEST(ReplaysOnADevice, OfThirtyTwoLayersAtOnceHaveTheNumbersOfEachAlone) {
  constexpr int64_t kMany = 32;
  const test::TemporaryFolder folder;
  traces::generate({.tokens = 40,
                    .decode = 5,
                    .layers = kMany,
                    .query_heads = 4,
                    .kv_heads = 2,
                    .head_dim = 8,
                    .model_dim = 16,
                    .window_queries = 8,
                    .dtype = Dtype::bf16},
                   folder.path("trace.safetensors"));
  const traces::Trace trace(folder.path("trace.safetensors"));
  const auto runs =
      every_run(named_policies({"h2o:window=8:recent=4", "snapkv:window=8+critical"}, std::nullopt),
                {parse_budget("50%")}, {"emulated", std::string(kReference)});
  Scope scope;
  scope.steps = 5;
  for (int64_t l = 0; l < kMany; ++l) scope.layers.push_back(l);
  Seen together, alone;
  replay(trace, runs, scope, together.observer());
  for (const int64_t l : std::vector(scope.layers)) {
    scope.layers = {l};
    replay(trace, runs, scope, alone.observer());
  }
  EXPECT_EQ(together.order, alone.order) << "layer by layer";
  EXPECT_EQ(together.numbers, alone.numbers);
}

}  // namespace
}  // namespace kvbound::sim::replay_test
