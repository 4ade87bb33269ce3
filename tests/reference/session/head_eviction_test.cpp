// Evictions while decoding, against the definitions in 50 digits.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/change_oracle.hpp"
#include "support/decoding.hpp"
#include "support/power_layer.hpp"
#include "support/recorded_numbers.hpp"
#include "support/session_cases.hpp"
#include "support/threads.hpp"

namespace kvbound::reference::head_eviction_test {
namespace {

using namespace test;
using oracle::Real;
using oracle::Reals;
using Evictions = std::vector<Positions>;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

// ---- by hand, with CriticalKV's stages

// A policy with CriticalKV's selection. In the layers below values are the projected norms, and the
// bases give the attention.
Policy critical(Host host, std::optional<Decimal> alpha, double epsilon = 0) {
  TwoStage options;
  options.alpha = alpha;
  options.epsilon = epsilon;
  return {host, {}, Critical{options}, {}, {}};
}

TEST(CriticalInDecoding, LetsTheLeastByStageTwoGoOutsideStageOne) {
  // Weights (8, 4, 2, 1, 1)/16 and norms (1, 1, 8, 32, 2) have products 8, 4, 16, 32, 2: entry 4's is the
  // least. Of k = 4 entries stage one protects floor(4 alpha) by attention, entry 0 first.
  const PowerLayer layer({8, 4, 2, 1, 1}, {1, 1, 8, 32, 2}, {{1, 1}}, 4);
  EXPECT_EQ(evictions(layer, critical(Tova{0}, Decimal{5, 1}), 4), (Evictions{{4}}));
  // With norms (1, 1, 8, 32, 6) entry 4's product 6 exceeds entry 1's 4, unless stage one has two
  // places and protects entry 1.
  const PowerLayer other({8, 4, 2, 1, 1}, {1, 1, 8, 32, 6}, {{1, 1}}, 4);
  EXPECT_EQ(evictions(other, critical(Tova{0}, Decimal{5, 1}), 4), (Evictions{{4}}));
  EXPECT_EQ(evictions(other, critical(Tova{0}, Decimal{49, 2}), 4), (Evictions{{1}})) << "floor(1.96) is 1";
  EXPECT_EQ(evictions(other, critical(Tova{0}, Decimal{0, 0}), 4), (Evictions{{1}})) << "no stage one";
  EXPECT_EQ(evictions(other, critical(Tova{0}, Decimal{1, 0}), 4), (Evictions{{4}}))
      << "stage one is all but one: 3 and 4 tie";
  // k = 3 beside a sink: floor(0.75) = 0 entries are protected, where floor(1) would protect entry 1.
  EXPECT_EQ(evictions(other, critical(Tova{1}, Decimal{25, 2}), 4), (Evictions{{1}}));
}

TEST(CriticalInDecoding, AddsEpsilonToTheScore) {
  // Attention (4, 2, 1, 1)/8, norms (1, 1, 2, 5): products (4, 2, 2, 5)/8. With
  // epsilon 1: (12, 10, 18, 45)/8.
  const PowerLayer layer({4, 2, 1, 1}, {1, 1, 2, 5}, {{1, 1}}, 3);
  EXPECT_EQ(evictions(layer, critical(Tova{0}, Decimal{0, 0}, 1), 3), (Evictions{{1}}));
  EXPECT_EQ(evictions(layer, critical(Tova{0}, Decimal{0, 0}, 0), 3), (Evictions{{2}}))
      << "1 and 2 tie: the larger goes";
}

TEST(CriticalInDecoding, OfH2oWeighsTheRunningSum) {
  // Running sums (4, 2, 1)/7, and the step adds 1/4 to each: 0.82, 0.54, 0.39, 0.25; norms (1, 1, 4, 8):
  // products 0.82, 0.54, 1.57, 2.
  const PowerLayer layer({4, 2, 1, 1}, {1, 1, 4, 8}, {{1, 0}}, 3);
  EXPECT_EQ(evictions(layer, critical(H2o{1, 0, 0}, Decimal{0, 0}), 3), (Evictions{{1}}));
  EXPECT_EQ(evictions(layer, critical(H2o{1, 0, 0}, Decimal{7, 1}), 3), (Evictions{{2}}))
      << "0 and 1 are stage one";
}

TEST(CriticalInDecoding, AdaptsStageOneToTheStepsQuery) {
  // Weights (8, 4, 2, 1, 1)/16: entry 0 has exactly 1/2, which is not enough; with entry 1 it is. Entry 2 has
  // product 1, 3 and 4 have 32.
  const PowerLayer layer({8, 4, 2, 1, 1}, {1, 1, 0.5, 32, 32}, {{1, 1}}, 4);
  EXPECT_EQ(evictions(layer, critical(Tova{0}, {}), 4), (Evictions{{2}}));
  // With (9, 4, 2, 1, 1)/17 entry 0 is enough: entry 1 is evicted, whose product 4 * 1/8 is
  // less than entry 2's 2 * 1/2.
  const PowerLayer lighter({9, 4, 2, 1, 1}, {1, 0.125, 0.5, 32, 32}, {{1, 1}}, 4);
  EXPECT_EQ(evictions(lighter, critical(Tova{0}, {}), 4), (Evictions{{1}}));
  // The always-kept sink counts: entry 0 already has more than half, so stage one is empty.
  EXPECT_EQ(evictions(lighter, critical(Tova{1}, {}), 4), (Evictions{{1}}));
  // A second head attends to all equally and needs 3 of 5 entries: 0, 1, 2 are stage one. Of 3 and 4, with
  // norms 32 and 16, 4 is evicted.
  const PowerLayer two({9, 4, 2, 1, 1}, {1, 0.125, 0.5, 32, 16}, {{1, 1}, {0, 0}}, 4);
  EXPECT_EQ(evictions(two, critical(Tova{0}, {}), 4), (Evictions{{4}}));
}

// ---- every host and score, without any running state

// The scores of one KV head's entries by definition; its running sums are added up independently.
class Definition {
 public:
  Definition(const RandomLayer& layer, const Policy& policy, int64_t g)
      : layer_(layer), policy_(policy), g_(g) {
    const LayerView view = layer.view();
    rules_ = rules_of(policy.host, layer.tokens, 0);
    for (int64_t h = 0; h < heads(); ++h) {
      auto& sums = sums_.emplace_back();
      for (int64_t i = view.window_queries() - rules_.window; i < view.window_queries(); ++i) {
        const Positions seen = range(0, layer.tokens - view.window_queries() + i + 1);
        add(sums, view.queries.slice(head(h)).row(i), head(h), seen);
      }
    }
  }

  // Adds the scores that the step's queries give the cached entries.
  void accumulate(int64_t step, const Positions& cached) {
    for (int64_t h = 0; h < heads(); ++h) {
      auto& sums = sums_[h];
      if (rules_.step_update != StepUpdate::accumulate) sums.clear();
      const VectorView query = layer_.step(step).queries.row(head(h));
      add(sums, query, head(h), cached);
    }
  }

  // The entry with the least score, stage one excluded; the test fails if another score is too close to tell.
  int64_t expected_eviction(int64_t step, int64_t budget, const Positions& cached) const {
    const int64_t newest = cached.back();
    Positions candidates;
    for (const int64_t j : cached) {
      if (!rules_of(policy_.host, layer_.tokens, budget).always_keeps(j, newest)) candidates.push_back(j);
    }
    const auto* options = std::get_if<Critical>(&policy_.selection);
    if (options == nullptr) return least(candidates, [&](int64_t j) { return score(j); });
    std::ranges::sort(candidates, std::ranges::greater(), [&](int64_t j) { return score(j); });
    const int64_t k = budget - (static_cast<int64_t>(cached.size() - candidates.size()));
    const int64_t one =
        options->alpha ? floor_of_product(*options->alpha, k) : adaptive_count(step, cached, candidates, k);
    return least({candidates.begin() + one, candidates.end()},
                 [&](int64_t j) { return stage_two(j, *options); });
  }

 private:
  using ScoreSums = std::map<int64_t, Real>;

  int64_t heads() const { return layer_.shape.group_size(); }
  int64_t head(int64_t h) const { return g_ * heads() + h; }
  MatrixView projection(int64_t h) const {
    return rules_of(policy_.score).space == Space::head ? MatrixView() : layer_.view().head_projection(h);
  }

  Reals logits(VectorView query, const Positions& seen) const {
    return oracle::exact_logits(query, rows_at(layer_.all_keys.slice(g_), seen), layer_.view().scale);
  }
  void add(ScoreSums& sums, VectorView query, int64_t h, const Positions& seen) const {
    const Reals all = logits(query, seen), weights = oracle::softmax(all);
    const Matrix values = rows_at(layer_.all_values.slice(g_), seen);
    const auto change = rules_of(policy_.score).change;
    for (size_t j = 0; j < seen.size(); ++j) {
      sums[seen[j]] +=
          change ? oracle::change(*change, all, values, projection(h), static_cast<int64_t>(j)).value
                 : weights[j];
    }
  }

  Real score(int64_t j) const {
    Real sum = 0;
    for (const ScoreSums& sums : sums_) sum += sums.at(j);
    return rules_of(policy_.score).change ? sum : Real(sum / heads());
  }
  Real stage_two(int64_t j, const TwoStage& options) const {
    Real products = 0, norms = 0;
    for (int64_t h = 0; h < heads(); ++h) {
      const MatrixView value = layer_.all_values.slice(g_).middle_rows(j, 1);
      const Real norm = projected_value_norms(value, layer_.view().head_projection(head(h)), options.norm)[0];
      products += (sums_[h].at(j) + options.epsilon) * norm;
      norms += norm;
    }
    if (options.gqa == GqaProduct::mean_of_products) return products / heads();
    return (score(j) + options.epsilon) * norms / heads();
  }
  int64_t adaptive_count(int64_t step, const Positions& cached, const Positions& ranked, int64_t k) const {
    int64_t count = 0;
    for (int64_t h = 0; h < heads(); ++h) {
      const Reals weights = oracle::softmax(logits(layer_.step(step).queries.row(head(h)), cached));
      std::map<int64_t, Real> weight;
      for (size_t j = 0; j < cached.size(); ++j) weight[cached[j]] = weights[j];
      Real mass = 1;
      for (const int64_t j : ranked) mass -= weight[j];
      int64_t needed = 0;
      while (needed < k && mass <= 0.5) mass += weight[ranked[needed++]];
      count = std::max(count, needed);
    }
    return count;
  }

  template <class Score>
  static int64_t least(const Positions& candidates, const Score& score) {
    std::vector<std::pair<Real, int64_t>> scored;
    for (const int64_t j : candidates) scored.emplace_back(score(j), j);
    std::ranges::sort(scored);
    if (scored.size() > 1) {
      EXPECT_GT(scored[1].first, scored[0].first * (1 + 1e-8)) << "too near to tell: take another seed";
    }
    return scored[0].second;
  }

  const RandomLayer& layer_;
  const Policy& policy_;
  int64_t g_;
  HostRules rules_;
  std::vector<ScoreSums> sums_;  // per query head of the group
};

template <class Kind>
Kind with(std::optional<Decimal> alpha, GqaProduct gqa) {
  return std::get<Kind>(two_stage<Kind>(alpha, gqa, Norm::l2).selection);
}

std::vector<Policy> dynamic_policies() {
  std::vector<Policy> policies;
  for (const Host& host : {Host(H2o{6, 0, 0}), Host(H2o{8, 2, 3}), Host(Tova{0}), Host(Tova{2})}) {
    for (const Score& score :
         {Score(), Score(ObcacheValue()), Score(ObcacheKey()), Score(ObcacheJoint()), Score(ExactRemoval()),
          Score(ExactRemoval{{Space::projected}}), Score(ObcacheJoint{{Space::projected}})}) {
      policies.push_back({host, score, {}, {}, {}});
    }
    for (const std::optional<Decimal> alpha : {std::optional(Decimal{5, 1}), std::optional<Decimal>()}) {
      policies.push_back({host, {}, with<Critical>(alpha, GqaProduct::mean_of_products), {}, {}});
    }
    policies.push_back({host, {}, with<Critical>(Decimal{3, 1}, GqaProduct::product_of_means), {}, {}});
    policies.push_back({host, {}, with<ThetaSweep>(Decimal{5, 1}, GqaProduct::mean_of_products), {}, {}});
  }
  return policies;
}

constexpr int64_t kManySteps = 6;

TEST(EvictionOracle, LetsThoseGoWhomTheDefinitionsNameAtEveryStep) {
  std::set<bool> new_at_once;  // whether an entry is evicted in the step that adds it
  for (const int64_t group_size : kGroupSizes) {
    const RandomLayer layer({kQueryHeads, kQueryHeads / group_size, 3, 4}, 16, kRecorded, kManySteps,
                            static_cast<uint64_t>(40 + group_size));
    for (size_t p = 0; const Policy& policy : dynamic_policies()) {
      SCOPED_TRACE("group size " + std::to_string(group_size) + ", policy " + std::to_string(p++));
      const auto session = make_session();
      Positions budgets;
      for (int64_t g = 0; g < layer.shape.kv_heads; ++g) budgets.push_back(7 + g);
      const auto kept = session->compress(layer.view(), policy, budgets).kept;
      std::vector<StepRecord> records;
      for (int64_t t = 0; t < kManySteps; ++t) records.push_back(session->step(layer.step(t)));
      for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
        const int64_t index = g;
        Definition definition(layer, policy, g);
        Positions cached = kept[index];
        for (int64_t t = 0; t < kManySteps; ++t) {
          const auto record = static_cast<size_t>(t);
          cached.push_back(layer.tokens + t);
          definition.accumulate(t, cached);
          const int64_t expected = definition.expected_eviction(t, budgets[index], cached);
          ASSERT_EQ(records[record].evicted[index], expected) << "step " << t << ", KV head " << g;
          new_at_once.insert(expected == cached.back());
          std::erase(cached, expected);
        }
      }
    }
  }
  EXPECT_EQ(new_at_once.size(), 2);
}

// Whatever the order of the cache in memory, the outputs are attention over its entries in order of position.
TEST(HeadEviction, AnswersAsTheEntriesThatAreLeft) {
  const RandomLayer layer({kQueryHeads, 2, 3, 4}, 16, kRecorded, kManySteps, 50);
  for (const Policy& policy : dynamic_policies()) {
    const auto session = make_session();
    std::vector<Positions> cached = session->compress(layer.view(), policy, Positions{7, 9}).kept;
    for (int64_t t = 0; t < kManySteps; ++t) {
      const StepRecord record = session->step(layer.step(t));
      for (size_t g = 0; g < 2; ++g) {
        cached[g].push_back(layer.tokens + t);
        const auto head = static_cast<int64_t>(g);
        const Matrix values = rows_at(layer.all_values.slice(head), cached[g]);
        for (int64_t h = 2 * head; h < 2 * head + 2; ++h) {
          const Reals weights = oracle::softmax(
              oracle::exact_logits(layer.step(t).queries.row(h),
                                   rows_at(layer.all_keys.slice(head), cached[g]), layer.view().scale));
          for (int64_t c = 0; c < 3; ++c) {
            oracle::Measured output;
            for (int64_t j = 0; j < values.rows(); ++j) {
              const Real term = weights[j] * values(j, c);
              output += {term, abs(term)};
            }
            EXPECT_TRUE(near(record.output(h, c), output)) << "step " << t;
          }
        }
        std::erase(cached[g], record.evicted[g]);
      }
    }
  }
}

TEST(HeadEviction, StartsOverWhenTheSessionCompressesAgain) {
  const RandomLayer layer({kQueryHeads, 2, 6, 9}, kTokens, kRecorded, kManySteps, 51);
  std::vector<Policy> policies = dynamic_policies();
  policies.push_back(kTopK);  // caches that grow, after caches that do not
  policies.push_back({StreamingLlm{3}, {}, {}, {}, {}});
  policies.push_back({RandomHost{1, 2, 3}, {}, {}, {}, {}});
  policies.push_back({kHost, {}, Greedy(), {}, {}});
  policies.push_back({kHost, ExactRemoval(), {}, {}, {}});
  policies.push_back(policies.front());
  const auto session = make_session();
  for (const Policy& policy : policies) {
    for (const Positions& budgets : {Positions{7, 21}, Positions{kTokens, 6}}) {
      EXPECT_EQ(recorded_numbers(*session, layer, policy, budgets, kManySteps),
                recorded_numbers(*make_session(), layer, policy, budgets, kManySteps));
    }
  }
}

TEST(HeadEviction, GivesTheSameBitsForAnyNumberOfThreads) {
  const RandomLayer layer({8, 4, 16, 40}, 300, 40, kManySteps, 52);
  for (const Policy& policy : dynamic_policies()) {
    const auto numbers = [&] {
      return recorded_numbers(*make_session(), layer, policy, {60, 90, 45, 300}, kManySteps);
    };
    const std::vector<double> alone = test::with_threads(1, numbers);
    for (const int threads : {2, 3}) {
      EXPECT_EQ(test::with_threads(threads, numbers), alone) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace kvbound::reference::head_eviction_test
