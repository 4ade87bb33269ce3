// Merging in sessions of every host, without looking at merged numbers.
#include <algorithm>
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>

#include "support/merging_cases.hpp"
#include "support/oracle.hpp"
#include "support/recorded_numbers.hpp"
#include "support/threads.hpp"

namespace kvbound::reference::session_merging_test {
namespace {

using namespace test;
using oracle::Real;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

constexpr int64_t kManySteps = 9;

RandomLayer layer_of(int64_t group_size, uint64_t seed) {
  return {{kQueryHeads, kQueryHeads / group_size, 6, 9}, kTokens, kRecorded, kManySteps, seed};
}

Positions equal_budgets(const RandomLayer& layer, int64_t budget) {
  return Positions(layer.shape.kv_heads, budget);
}

std::vector<NamedMerge> all_merges(const SimilarTarget& target) {
  std::vector<NamedMerge> merges = targeted_merges(target);
  merges.push_back({"cam:neighbours=4", Cam{4, 7}});
  KeepKv merge_first;
  merge_first.order = MergeOrder::merge_first;
  merges.push_back({"keepkv:order=merge-first", with_target(merge_first, target)});
  return merges;
}

// ---- a threshold of one

// Policies without merging: every host with every score and selection that it takes.
std::vector<Policy> evicting_policies() {
  std::vector<Policy> policies;
  for (const NamedHost& host : all_hosts()) {
    policies.push_back({host.host, {}, {}, {}, {}});
    if (!ranks(host.host)) continue;
    for (const Score& score : {Score(ObcacheValue{{Space::projected}}), Score(ObcacheKey{}),
                               Score(ObcacheJoint{}), Score(ExactRemoval{})}) {
      policies.push_back({host.host, score, {}, {}, {}});
    }
    for (const std::optional<Decimal> alpha : {std::optional(Decimal{5, 1}), std::optional<Decimal>()}) {
      Critical critical;
      critical.alpha = alpha;
      policies.push_back({host.host, {}, critical, {}, {}});
    }
    policies.push_back({host.host, {}, ThetaSweep{}, {}, {}});
    policies.push_back({host.host, {}, {}, AdaKv{}, {}});
  }
  policies.push_back({kHost, {}, Greedy{}, {}, {}});
  return policies;
}

// The caches, outputs and evictions equal those without merging to the last bit; no entry is merged.
void expect_eviction(const RandomLayer& layer, const Policy& policy, const Merge& merge,
                     const Positions& budgets) {
  Policy merging = policy;
  merging.merge = merge;
  RecordedSession expected(layer, policy, budgets), actual(layer, merging, budgets);
  EXPECT_EQ(actual.prompt.kept, expected.prompt.kept);
  for (int64_t t = 0; t < kManySteps; ++t) {
    for (size_t g = 0; g < expected.caches.size(); ++g) {
      ASSERT_EQ(actual.caches[g].positions(), expected.caches[g].positions());
      EXPECT_EQ(actual.caches[g].keys().numbers().size(), expected.caches[g].keys().numbers().size());
      EXPECT_TRUE(std::ranges::equal(actual.caches[g].keys().numbers(), expected.caches[g].keys().numbers()));
      EXPECT_TRUE(
          std::ranges::equal(actual.caches[g].values().numbers(), expected.caches[g].values().numbers()));
      EXPECT_EQ(actual.caches[g].all_votes(), static_cast<double>(actual.caches[g].entries.size()));
    }
    const StepRecord evicted = expected.step(), merged = actual.step();
    EXPECT_TRUE(std::ranges::equal(merged.output.numbers(), evicted.output.numbers())) << "step " << t;
    EXPECT_EQ(merged.evicted, evicted.evicted);
    for (size_t g = 0; g < merged.evicted.size(); ++g) {
      EXPECT_EQ(merged.merged_into[g], merged.evicted[g] < 0 ? -2 : -1);
    }
  }
}

TEST(SessionMerging, AtAThresholdOfOneIsTheHostBitForBit) {
  for (const int64_t group_size : kGroupSizes) {
    const RandomLayer layer = layer_of(group_size, 40);
    const Positions budgets = different_budgets(layer.shape.kv_heads);
    for (const NamedMerge& merge : targeted_merges(SimilarTarget{Decimal{1, 0}})) {
      if (const auto* keep_kv = std::get_if<KeepKv>(&merge.merge); keep_kv && keep_kv->period) continue;
      SCOPED_TRACE(merge.name + ", group of " + std::to_string(group_size));
      size_t index = 0;
      for (const Policy& policy : evicting_policies()) {
        SCOPED_TRACE(index++);
        expect_eviction(layer, policy, merge.merge, budgets);
      }
    }
  }
}

TEST(SessionMerging, MergingFirstAtAThresholdOfOneIsTheHostBitForBit) {
  KeepKv merge_first = with_target(KeepKv{}, SimilarTarget{Decimal{1, 0}});
  merge_first.order = MergeOrder::merge_first;
  const RandomLayer layer = layer_of(2, 41);
  for (const NamedHost& host : all_hosts()) {
    if (!ranks(host.host)) continue;
    for (const Allocation& allocation : {Allocation(Uniform{}), Allocation(AdaKv{})}) {
      SCOPED_TRACE(host.name);
      expect_eviction(layer, {host.host, {}, {}, allocation, {}}, merge_first, {13, 13});
    }
  }
}

// ---- votes

TEST(SessionMerging, LosesNoVoteWithoutAThreshold) {
  std::vector<NamedMerge> merges = keep_kv_merges(kMergeAll);
  KeepKv merge_first = with_target(KeepKv{}, kMergeAll);
  merge_first.order = MergeOrder::merge_first;
  merges.push_back({"keepkv:order=merge-first", merge_first});
  for (const int64_t group_size : kGroupSizes) {
    const RandomLayer layer = layer_of(group_size, 42);
    for (const auto& [name, policy, always_kept] : merging_policies(merges)) {
      SCOPED_TRACE(name + ", group of " + std::to_string(group_size));
      RecordedSession session(layer, policy, equal_budgets(layer, 12));
      for (const RecordedCache& cache : session.caches) EXPECT_EQ(cache.all_votes(), kTokens);
      for (int64_t t = 0; t < kManySteps; ++t) {
        session.step();
        for (const RecordedCache& cache : session.caches) EXPECT_EQ(cache.all_votes(), kTokens + t + 1);
      }
    }
  }
}

TEST(SessionMerging, OfOtherMethodsNeverVotes) {
  const RandomLayer layer = layer_of(2, 43);
  for (const auto& [name, policy, always_kept] : merging_policies(all_merges(kMergeAll))) {
    if (std::holds_alternative<KeepKv>(policy.merge)) continue;
    SCOPED_TRACE(name);
    RecordedSession session(layer, policy, {12, 12});
    for (int64_t t = 0; t < kManySteps; ++t) {
      session.step();
      for (const RecordedCache& cache : session.caches) {
        EXPECT_EQ(cache.all_votes(), static_cast<double>(cache.entries.size()));
      }
    }
  }
}

// ---- the contents of records

TEST(SessionMerging, AnswersByTheCacheThatItsRecordsDescribe) {
  for (const int64_t group_size : {2}) {
    const RandomLayer layer = layer_of(group_size, 44);
    for (const auto& [name, policy, always_kept] :
         merging_policies(all_merges(SimilarTarget{Decimal{2, 1}}))) {
      SCOPED_TRACE(name + ", group of " + std::to_string(group_size));
      RecordedSession session(layer, policy, equal_budgets(layer, 12));
      for (int64_t t = 0; t < kManySteps; ++t) {
        const StepRecord record = session.step();
        const StepView view = layer.step(t);
        for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
          const RecordedCache& cache = session.seen[g];
          const auto expected =
              oracle::attention(view.queries.middle_rows(g * group_size, group_size), cache.keys(),
                                cache.values(), layer.view().scale, cache.votes());
          EXPECT_TRUE(oracle::all_within(record.output.view().middle_rows(g * group_size, group_size),
                                         expected.output))
              << "step " << t;
        }
      }
    }
  }
}

TEST(SessionMerging, CountsThoseWhoLeaveAndThoseWhoMerge) {
  const RandomLayer layer = layer_of(2, 45);
  for (const auto& [name, policy, always_kept] : merging_policies(all_merges(SimilarTarget{Decimal{2, 1}}))) {
    SCOPED_TRACE(name);
    RecordedSession session(layer, policy, {12, 12});
    int64_t merged = 0;
    const bool spreads = std::holds_alternative<Cam>(policy.merge);
    const auto expect_counts = [&](const HeadMerge& merge, int64_t leaving) {
      EXPECT_EQ(merge.counts.leaving, leaving);
      EXPECT_LE(merge.counts.merged, leaving);
      merged += merge.counts.merged;
      if (spreads) return;
      int64_t from = 0;
      for (const MergeCluster& cluster : merge.clusters) from += std::ssize(cluster.from);
      EXPECT_EQ(merge.counts.merged, from);
      EXPECT_EQ(merge.counts.clusters, std::ssize(merge.clusters));
    };
    for (size_t g = 0; g < 2; ++g) {
      EXPECT_EQ(session.prompt.merges[g].positions, session.prompt.kept[g]);
      expect_counts(session.prompt.merges[g], kTokens - std::ssize(session.prompt.kept[g]));
    }
    for (int64_t t = 0; t < kManySteps; ++t) {
      const StepRecord record = session.step();
      EXPECT_EQ(record.evicted.empty(), record.merged_into.empty());
      for (size_t g = 0; g < record.merges.size(); ++g) {
        const int64_t entries = std::ssize(session.seen[g].entries);
        expect_counts(record.merges[g], record.rebuilt           ? kTokens + t + 1 - entries
                                        : record.evicted[g] >= 0 ? 1
                                                                 : 0);
      }
    }
    EXPECT_GT(merged, 0) << "or nothing was tested";
  }
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double product = 0, aa = 0, bb = 0;
  for (size_t c = 0; c < a.size(); ++c) {
    product += a[c] * b[c];
    aa += a[c] * a[c];
    bb += b[c] * b[c];
  }
  return aa == 0 || bb == 0 ? 0 : product / std::sqrt(aa * bb);
}

// 1e-14 covers the rounding of products of 6 numbers of length 1 on both sides.
TEST(SessionMerging, InDecodingSendsWhoLeavesToTheMostSimilarOfTheOthers) {
  const double threshold = 0.6;
  std::map<size_t, std::pair<int, int>> seen;  // {merged, dropped} by host
  for (const auto& [name, policy, always_kept] :
       merging_policies(targeted_merges(SimilarTarget{Decimal{6, 1}}))) {
    if (!evicts(policy.host)) continue;
    SCOPED_TRACE(name);
    const RandomLayer layer = layer_of(2, 46);
    RecordedSession session(layer, policy, {12, 10});
    auto& [merged, dropped] = seen[policy.host.index()];
    for (int64_t t = 0; t < kManySteps; ++t) {
      const StepRecord record = session.step();
      for (size_t g = 0; g < 2; ++g) {
        const int64_t into = record.merged_into[g], left = record.evicted[g];
        if (left < 0) {
          EXPECT_EQ(into, -2);
          EXPECT_TRUE(record.rebuilt) << "else one is too many";
          continue;
        }
        double most = -1;
        for (const auto& [position, entry] : session.seen[g].entries) {
          if (position != left)
            most = std::max(most, cosine(entry.key, session.seen[g].entries.at(left).key));
        }
        if (into == -1) {
          EXPECT_LE(most, threshold + 1e-14);
          EXPECT_TRUE(record.merges[g].clusters.empty() && record.merges[g].positions.empty());
          ++dropped;
          continue;
        }
        ++merged;
        ASSERT_TRUE(session.caches[g].entries.contains(into)) << into;
        const double here =
            cosine(session.seen[g].entries.at(into).key, session.seen[g].entries.at(left).key);
        EXPECT_GE(here, most - 1e-14);
        EXPECT_GT(here, threshold - 1e-14);
        EXPECT_EQ(record.merges[g].positions, Positions{into});
        ASSERT_EQ(record.merges[g].clusters.size(), 1u);
        EXPECT_EQ(record.merges[g].clusters[0].into, into);
        EXPECT_EQ(record.merges[g].clusters[0].from, Positions{left});
      }
    }
  }
  ASSERT_EQ(seen.size(), 3u);
  for (const auto& [host, counts] : seen) {
    EXPECT_GT(counts.first, 0) << host;
    EXPECT_GT(counts.second, 0) << host;
  }
}

// ---- the same numbers

TEST(SessionMerging, GivesTheSameBitsForAnyNumberOfThreads) {
  // 280 tokens: more than one block of keys.
  const RandomLayer layer({8, 4, 8, 12}, 280, 20, 4, 48);
  const Positions budgets{60, 90, 45, 280};
  for (const auto& [name, policy, always_kept] : merging_policies(all_merges(SimilarTarget{Decimal{3, 1}}))) {
    if (name.find("gqa=mean") != std::string::npos || name.find("convex") != std::string::npos) continue;
    SCOPED_TRACE(name);
    const auto numbers = [&] { return recorded_numbers(*make_session(), layer, policy, budgets, 4); };
    const std::vector<double> alone = test::with_threads(1, numbers);
    for (const int threads : {2, 4}) {
      EXPECT_EQ(test::with_threads(threads, numbers), alone) << threads << " threads";
    }
  }
}

TEST(SessionMerging, StartsOverWhenItCompressesAgain) {
  const RandomLayer layer = layer_of(2, 49);
  const auto session = make_session();
  for (const SimilarTarget& target : {kMergeAll, SimilarTarget{Decimal{5, 1}}}) {
    for (const auto& [name, policy, always_kept] : merging_policies(all_merges(target))) {
      SCOPED_TRACE(name);
      for (const Positions& budgets : {Positions{7, 21}, Positions{kTokens, always_kept}}) {
        EXPECT_EQ(recorded_numbers(*session, layer, policy, budgets, kManySteps),
                  recorded_numbers(*make_session(), layer, policy, budgets, kManySteps));
      }
      Policy evicting = policy;
      evicting.merge = NoMerge{};
      EXPECT_EQ(recorded_numbers(*session, layer, evicting, {9, 9}, kManySteps),
                recorded_numbers(*make_session(), layer, evicting, {9, 9}, kManySteps))
          << "votes and averages are forgotten";
    }
  }
}

// ---- at the edges

void expect_sound(const RandomLayer& layer, const Policy& policy, int64_t budget) {
  RecordedSession session(layer, policy, equal_budgets(layer, budget));
  for (int64_t t = 0; t < kManySteps; ++t) {
    const StepRecord record = session.step();
    for (const double number : record.output.numbers()) ASSERT_TRUE(std::isfinite(number));
    for (const RecordedCache& cache : session.caches) {
      EXPECT_LE(std::ssize(cache.entries), budget + (evicts(policy.host) ? 0 : t + 1));
      for (const auto& [position, entry] : cache.entries) {
        EXPECT_GE(entry.votes, 1);
        for (const double number : entry.key) ASSERT_TRUE(std::isfinite(number)) << position;
        for (const double number : entry.value) ASSERT_TRUE(std::isfinite(number)) << position;
      }
    }
  }
}

TEST(SessionMerging, IsSoundWithZeroKeysEqualLogitsAndHugeOnes) {
  RandomLayer zero_keys = layer_of(2, 50), equal = layer_of(2, 51), huge = layer_of(2, 52),
              zero = layer_of(2, 53);
  for (int64_t i = 0; i < kTokens + kManySteps; i += 2)
    std::ranges::fill(zero_keys.all_keys.slice(0).row(i), 0.0);
  std::ranges::fill(zero_keys.all_keys.slice(1).row(kTokens), 0.0);
  std::ranges::fill(equal.all_queries.numbers(), 0.0);
  for (double& number : huge.all_queries.numbers()) number *= 1e4;
  std::ranges::fill(zero.all_keys.numbers(), 0.0);
  for (const auto& [name, policy, always_kept] : merging_policies(all_merges(kMergeAll))) {
    SCOPED_TRACE(name);
    for (const RandomLayer* layer : {&zero_keys, &equal, &huge, &zero}) expect_sound(*layer, policy, 12);
  }
}

TEST(SessionMerging, IsSoundAtBudgetsOfThePromptAndOfThoseWhoAlwaysStay) {
  const RandomLayer layer = layer_of(2, 54);
  for (const auto& [name, policy, always_kept] : merging_policies(all_merges(kMergeAll))) {
    SCOPED_TRACE(name);
    expect_sound(layer, policy, kTokens);
    if (!std::holds_alternative<Tova>(policy.host)) expect_sound(layer, policy, always_kept);
    expect_sound(layer, policy, always_kept + 1);
  }
}

TEST(SessionMerging, LeavesThePromptAloneWhereNobodyLeaves) {
  const RandomLayer layer = layer_of(2, 55);
  for (const auto& [name, policy, always_kept] :
       merging_policies(all_merges(SimilarTarget{Decimal{999, 3}}))) {
    SCOPED_TRACE(name);
    const RecordedSession session(layer, policy, {kTokens, kTokens});
    for (int64_t g = 0; g < 2; ++g) {
      const HeadMerge& merge = session.prompt.merges[g];
      EXPECT_EQ(merge.counts.leaving, 0);
      EXPECT_EQ(merge.positions, range(0, kTokens));
      EXPECT_TRUE(std::ranges::equal(merge.keys.numbers(),
                                     std::span(layer.all_keys.slice(g).data, merge.keys.numbers().size())));
    }
  }
}

// ---- what is refused

TEST(SessionMerging, RefusesWhatHasNoMeaning) {
  const RandomLayer layer = layer_of(2, 56);
  const auto refused = [&](const Policy& policy) {
    return message_of<InvalidPolicy>([&] {
      make_session()->compress(layer.view(), policy, Positions{12, 12});
    });
  };
  KeepKv zip = keep_kv_by(MergedKey::zip, MergeGqa::joint, Prediction::ema);
  EXPECT_EQ(refused({kHost, {}, {}, {}, zip}),
            "keepkv:key=zip scales a key by one factor: it takes gqa=mean, not gqa=joint");
  KeepKv first;
  first.order = MergeOrder::merge_first;
  const std::string words =
      "keepkv:order=merge-first merges by attention before the entries of largest attention stay: it takes "
      "the hosts " +
      ranking_hosts() + ", and no score and no selection";
  EXPECT_EQ(refused({kHost, ExactRemoval{}, {}, {}, first}), words);
  EXPECT_EQ(refused({kHost, {}, Critical{}, {}, first}), words);
  EXPECT_EQ(refused({StreamingLlm{}, {}, {}, {}, first}), words);
  EXPECT_EQ(refused({RandomHost{}, {}, {}, {}, first}), words);
  KeepKv periodic;
  periodic.period = 8;
  const std::string no_ranks = " ranks nothing; hosts that do are " + ranking_hosts();
  EXPECT_EQ(refused({StreamingLlm{}, {}, {}, {}, periodic}),
            "keepkv:period selects anew by the current query, but streaming-llm" + no_ranks);
  EXPECT_EQ(refused({RandomHost{}, {}, {}, {}, periodic}),
            "keepkv:period selects anew by the current query, but random" + no_ranks);
  EXPECT_EQ(refused({kHost, {}, Greedy{}, {}, periodic}),
            "keepkv:period selects anew by the current query alone, which greedy cannot");
  EXPECT_EQ(refused({StreamingLlm{}, {}, {}, AdaKv{}, {}}),
            "adakv shares out by scores, but streaming-llm" + no_ranks);
  EXPECT_EQ(refused({RandomHost{}, {}, {}, AdaKv{}, {}}),
            "adakv shares out by scores, but random" + no_ranks);
}

}  // namespace
}  // namespace kvbound::reference::session_merging_test
