// A cache that is rebuilt from all original entries after every period of steps, and the state
// with which hosts continue.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

#include "support/merging_cases.hpp"

namespace kvbound::reference::session_rebuild_test {
namespace {

using namespace test;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

constexpr int64_t kManySteps = 9, kBudget = 12;

RandomLayer layer_of(uint64_t seed) { return {{kQueryHeads, 2, 6, 9}, kTokens, kRecorded, kManySteps, seed}; }

KeepKv periodic(int64_t period, const SimilarTarget& target) {
  KeepKv method = with_target(KeepKv{}, target);
  method.period = period;
  return method;
}

std::vector<NamedHost> ranking_hosts() {
  std::vector<NamedHost> hosts = all_hosts();
  std::erase_if(hosts, [](const NamedHost& host) { return !ranks(host.host); });
  return hosts;
}

TEST(SessionRebuild, ComesAfterEveryPeriodAndLosesNobodyThen) {
  for (const int64_t period : {1, 2, 4, 100}) {
    for (const NamedHost& host : ranking_hosts()) {
      SCOPED_TRACE(host.name + ", period " + std::to_string(period));
      const RandomLayer layer = layer_of(47);
      RecordedSession session(layer, {host.host, {}, {}, {}, periodic(period, kMergeAll)},
                              {kBudget, kBudget});
      for (int64_t t = 0; t < kManySteps; ++t) {
        const StepRecord record = session.step();
        ASSERT_EQ(record.rebuilt, (t + 1) % period == 0) << "step " << t;
        for (size_t g = 0; g < 2; ++g) {
          EXPECT_EQ(std::ssize(session.caches[g].entries), kBudget + (evicts(host.host) ? 0 : t + 1));
          if (!record.rebuilt || !evicts(host.host)) continue;
          EXPECT_EQ(record.evicted[g], -1);
          EXPECT_EQ(record.merged_into[g], -2);
        }
      }
    }
  }
}

// The layer with a prompt that extends to step t, and with only that step's queries recorded.
RandomLayer prolonged(const RandomLayer& layer, int64_t t) {
  RandomLayer result = layer;
  result.tokens = layer.tokens + t + 1;
  result.window_queries = 1;
  result.all_queries = Tensor(layer.shape.query_heads, 1, layer.shape.head_dim);
  for (int64_t h = 0; h < layer.shape.query_heads; ++h) {
    std::ranges::copy(layer.all_queries.slice(h).row(layer.window_queries + t),
                      result.all_queries.slice(h).row(0).begin());
  }
  return result;
}

void expect_equal(const HeadMerge& actual, const HeadMerge& expected) {
  EXPECT_EQ(actual.positions, expected.positions);
  EXPECT_EQ(actual.votes, expected.votes);
  EXPECT_TRUE(std::ranges::equal(actual.keys.numbers(), expected.keys.numbers()));
  EXPECT_TRUE(std::ranges::equal(actual.values.numbers(), expected.values.numbers()));
  ASSERT_EQ(actual.clusters.size(), expected.clusters.size());
  for (size_t i = 0; i < actual.clusters.size(); ++i) {
    EXPECT_EQ(actual.clusters[i].into, expected.clusters[i].into);
    EXPECT_EQ(actual.clusters[i].from, expected.clusters[i].from);
  }
}

// Hosts that evict: a rebuild is the compression of a prompt of all n + t + 1 entries, judged by this
// step's query, bit for bit.
TEST(SessionRebuild, IsThePromptsCompressionOfAllEntriesByTheStepsQueries) {
  Critical critical;
  Critical adaptive;
  adaptive.alpha.reset();
  struct Case {
    Host host, at_the_end;
  };
  for (const auto& [host, at_the_end] : {Case{H2o{6, 2, 4}, H2o{1, 2, 4}}, Case{Tova{2}, Tova{2}}}) {
    for (const Policy& choice :
         {Policy{host, {}, {}, {}, {}}, Policy{host, ExactRemoval{}, {}, {}, {}},
          Policy{host, ObcacheJoint{{Space::projected}}, {}, {}, {}}, Policy{host, {}, critical, {}, {}},
          Policy{host, {}, adaptive, {}, {}}, Policy{host, {}, ThetaSweep{}, {}, {}}}) {
      for (const bool zip : {false, true}) {
        SCOPED_TRACE(std::to_string(host.index()) + ", score " + std::to_string(choice.score.index()) +
                     ", selection " + std::to_string(choice.selection.index()) + (zip ? ", zip" : ""));
        KeepKv method = periodic(3, SimilarTarget{Decimal{2, 1}});
        if (zip) method.key = MergedKey::zip, method.gqa = MergeGqa::mean;
        if (std::holds_alternative<TopK>(choice.selection) &&
            std::holds_alternative<AttentionScore>(choice.score)) {
          method.order = MergeOrder::merge_first;  // applies at the prompt's end only
        }
        Policy policy = choice, fresh = choice;
        policy.merge = method;
        method.period.reset();
        method.order = MergeOrder::evict_first;
        method.prediction.predict = Prediction::current;
        fresh.host = at_the_end;
        fresh.merge = method;
        const RandomLayer layer = layer_of(48);
        RecordedSession session(layer, policy, {kBudget, kBudget + 3});
        for (int64_t t = 0; t < kManySteps; ++t) {
          const StepRecord record = session.step();
          if (!record.rebuilt) continue;
          const RandomLayer whole = prolonged(layer, t);
          const PromptRecord expected =
              make_session()->compress(whole.view(), fresh, Positions{kBudget, kBudget + 3});
          for (size_t g = 0; g < 2; ++g) expect_equal(record.merges[g], expected.merges[g]);
          EXPECT_EQ(record.stage_one, expected.stage_one);
        }
      }
    }
  }
}

// SnapKV: the candidates of the prompt's end compete again, pooled among themselves; its window
// and all later entries stay.
TEST(SessionRebuild, OfSnapKvChoosesAgainAmongThePromptsCandidates) {
  const int64_t candidates = kTokens - kHost.window;
  for (const int64_t seed : {49, 50, 51, 52}) {
    const RandomLayer layer = layer_of(static_cast<uint64_t>(seed));
    RecordedSession session(layer, {kHost, {}, {}, {}, periodic(2, kMergeAll)}, {kBudget, kBudget - 3});
    for (int64_t t = 0; t < kManySteps; ++t) {
      const StepRecord record = session.step();
      if (!record.rebuilt) continue;
      for (int64_t g = 0; g < 2; ++g) {
        const Matrix weights = attention_weights(layer.step(t).queries.middle_rows(2 * g, 2),
                                                 layer.keys(g, t), layer.view().scale, kTokens + t);
        const Matrix scores = group_mean(max_pool(weights.view().middle_cols(0, candidates), kHost.pool), 2);
        Positions expected = select_top(scores.row(0), kBudget - 3 * g - kHost.window);
        for (int64_t i = candidates; i <= kTokens + t; ++i) expected.push_back(i);
        EXPECT_EQ(record.merges[g].positions, expected) << "step " << t;
      }
    }
  }
}

// H2O's scores sum attention since the prompt's window, or since the last rebuild; a merged entry continues
// with the score of the entry that stayed.
TEST(SessionRebuild, StartsTheRunningScoresAnew) {
  for (const std::optional<int64_t> period : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
    const RandomLayer layer = layer_of(53);
    KeepKv method = with_target(KeepKv{}, kMergeAll);
    method.period = period;
    const H2o host{6, 2, 4};
    RecordedSession session(layer, {host, {}, {}, {}, method}, {kBudget, kBudget});
    std::vector<std::map<int64_t, double>> scores(2);
    for (size_t g = 0; g < 2; ++g) {
      for (const int64_t i : session.prompt.kept[g]) scores[g][i] = session.prompt.score(g, i);
    }
    int leaving = 0;
    for (int64_t t = 0; t < kManySteps; ++t) {
      const StepRecord record = session.step();
      for (size_t g = 0; g < 2; ++g) {
        const RecordedCache& cache = session.seen[g];
        if (record.rebuilt) scores[g].clear();
        const Matrix weights =
            group_mean(attention(layer.step(t).queries.middle_rows(2 * static_cast<int64_t>(g), 2),
                                 cache.keys(), cache.values(), layer.view().scale, cache.votes())
                           .weights,
                       2);
        const Positions positions = cache.positions();
        double least = std::numeric_limits<double>::infinity();
        for (size_t j = 0; j < positions.size(); ++j) {
          double& score = scores[g][positions[j]] += weights.row(0)[j];
          const bool stays = rules_of(host, kTokens, kBudget).always_keeps(positions[j], kTokens + t);
          if (!stays) least = std::min(least, score);
        }
        if (record.evicted[g] < 0) continue;
        // The session holds its entries in another order, so its sums are rounded differently.
        EXPECT_LE(scores[g].at(record.evicted[g]), least * (1 + 1e-12)) << "step " << t;
        scores[g].erase(record.evicted[g]);
        ++leaving;
      }
    }
    EXPECT_EQ(leaving, period ? 12 : 18);
  }
}

}  // namespace
}  // namespace kvbound::reference::session_rebuild_test
