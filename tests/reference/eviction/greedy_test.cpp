#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <limits>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/greedy.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/eviction/removal.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/change_oracle.hpp"
#include "support/power_layer.hpp"
#include "support/session_cases.hpp"

namespace kvbound::reference::greedy_test {
namespace {

using namespace test;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

TEST(RemovalOrder, TakesOutWhoIsMissedLeastGivenWhoIsGone) {
  // Weights 1/4 each, values 0, 4, 5 and 3 (not a candidate): o = 3. Without 4 o' = 8/3, without 5 7/3,
  // without 0 4: 4 is removed. Of 0, 5, 3: without 0 o' = 4, without 5 3/2. So 0 is removed before 5,
  // although alone 5 changes o less than 0.
  const PowerLayer layer({1, 1, 1, 1}, {0, 4, 5, 3}, {{1}}, 4);
  EXPECT_EQ(removal_order(layer.view(), 0, 1, 3, 3), (Positions{1, 0, 2}));
  const Matrix alone = window_scores(layer.view(), 1, Change::exact, Space::head);
  EXPECT_LT(alone(0, 2), alone(0, 0));
}

TEST(RemovalOrder, AddsUpOverTheGroupsQueryHeads) {
  // Head 0 has weights 1/3 each, o = 4: removing 0 or 8 changes o by 2 alike. Head 1 has weights (4, 1, 2)/7:
  // removing the first entry changes its output more.
  const PowerLayer layer({4, 1, 2}, {0, 8, 4}, {{0}, {1}}, 3);
  EXPECT_EQ(removal_order(layer.view(), 0, 1, 2, 2), (Positions{1, 0}));
  // With head 1's weights inverted, (1/4, 1, 1/2), removing the second entry changes more.
  const PowerLayer turned({4, 1, 2}, {0, 8, 4}, {{0}, {-1}}, 3);
  EXPECT_EQ(removal_order(turned.view(), 0, 1, 2, 2), (Positions{0, 1}));
}

TEST(RemovalOrder, OfTiesTakesTheLargerIndexFirst) {
  for (const int64_t tokens : {5, 40, 300}) {
    const auto count = static_cast<size_t>(tokens);
    const PowerLayer layer(std::vector<double>(count, 1), std::vector<double>(count, 3), {{1, 2}}, tokens);
    Positions falling = range(0, tokens - 2);
    std::ranges::reverse(falling);
    EXPECT_EQ(removal_order(layer.view(), 0, 2, tokens - 2, tokens - 2), falling);
  }
  // Values 9, 1, 9, 1 and 5 with mean 5: removing any candidate changes o by 1, so the
  // largest index is removed.
  const PowerLayer layer({1, 1, 1, 1, 1}, {9, 1, 9, 1, 5}, {{0}}, 5);
  const Positions order = removal_order(layer.view(), 0, 1, 4, 1);
  EXPECT_EQ(order, Positions{3}) << "all change o = 5 by 1";
}

TEST(RemovalOrder, OfNobodyIsEmpty) {
  const RandomLayer layer({2, 1, 3, 2}, 6, 2, 0, 1);
  EXPECT_TRUE(removal_order(layer.view(), 0, 2, 4, 0).empty());
  EXPECT_TRUE(removal_order(layer.view(), 0, 2, 0, 0).empty());
}

TEST(RemovalOrder, NamesWhatItRefuses) {
  RandomLayer layer({2, 1, 3, 2}, 6, 2, 0, 1);
  const auto refused = [&](int64_t candidates, int64_t count) {
    return message_of<ShapeMismatch>([&] { removal_order(layer.view(), 0, 2, candidates, count); });
  };
  const std::string why = " candidates among 6 tokens, the last 2 of which are none";
  EXPECT_EQ(refused(4, 5), "cannot remove 5 of 4" + why);
  EXPECT_EQ(refused(4, -1), "cannot remove -1 of 4" + why);
  EXPECT_EQ(refused(5, 2), "cannot remove 2 of 5" + why) << "a query of which no entry need be left";
  EXPECT_EQ(message_of<ShapeMismatch>([&] { removal_order(layer.view(), 0, 3, 3, 1); }),
            "window is 3 but 2 prompt queries are recorded");
  layer.all_values.slice(0)(1, 1) = 1e200;
  EXPECT_THROW(removal_order(layer.view(), 0, 2, 4, 1), NonFinite);
}

// The definition: o' - o by deletion in 50 digits, starting from the whole cache each time.
oracle::Real error_of(const LayerView& layer, int64_t g, int64_t window, const Positions& removed) {
  oracle::Real error = 0;
  for (int64_t h = g * layer.shape.group_size(); h < (g + 1) * layer.shape.group_size(); ++h) {
    for (int64_t i = layer.window_queries() - window; i < layer.window_queries(); ++i) {
      const int64_t seen = layer.prompt_tokens() - layer.window_queries() + i + 1;
      const oracle::Reals logits = oracle::exact_logits(
          layer.queries.slice(h).row(i), layer.keys.slice(g).middle_rows(0, seen), layer.scale);
      for (const auto& change :
           oracle::removal(logits, layer.values.slice(g).middle_rows(0, seen), removed)) {
        error += change.value * change.value;
      }
    }
  }
  return error;
}

Positions with(Positions set, int64_t one) {
  set.insert(std::ranges::lower_bound(set, one), one);
  return set;
}

Positions naive_order(const LayerView& layer, int64_t g, int64_t window, int64_t candidates) {
  Positions left = range(0, candidates), removed, order;
  while (!left.empty()) {
    std::vector<oracle::Real> errors;
    for (const int64_t j : left) errors.push_back(error_of(layer, g, window, with(removed, j)));
    const auto least = std::ranges::min_element(errors) - errors.begin();
    for (size_t j = 0; j < errors.size(); ++j) {
      EXPECT_TRUE(static_cast<int64_t>(j) == least || errors[j] > errors[least] * (1 + 1e-6))
          << "too near to tell: take another seed";
    }
    order.push_back(left[least]);
    removed = with(removed, order.back());
    left.erase(left.begin() + least);
  }
  return order;
}

TEST(RemovalOrderOracle, IsMetForSeveralHeadsAndQueries) {
  for (const int64_t kv_heads : {4, 2, 1}) {
    for (const double sharpness : {1, 6}) {
      RandomLayer layer({4, kv_heads, 3, 2}, 10, 4, 0, static_cast<uint64_t>(kv_heads));
      for (double& entry : layer.all_queries.numbers()) entry *= sharpness;
      for (const int64_t window : {1, 3}) {
        for (int64_t g = 0; g < kv_heads; ++g) {
          EXPECT_EQ(removal_order(layer.view(), g, window, 10 - window, 10 - window),
                    naive_order(layer.view(), g, window, 10 - window))
              << "window " << window << ", KV head " << g << " of " << kv_heads << ", sharpness "
              << sharpness;
        }
      }
    }
  }
}

// The entry with all weight but e^-gap is removed last, when the others' weight is less than a
// double resolves beside 1.
TEST(RemovalOrderOracle, IsMetWhereOneCandidateHoldsNearlyAll) {
  for (const double gap : {20.0, 38.0, 60.0}) {
    RandomLayer layer({2, 1, 3, 2}, 9, 2, 0, 31);
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 2; ++i) layer.all_queries.slice(h)(i, 0) = 1;
    }
    layer.all_keys.slice(0)(4, 0) = gap / layer.view().scale;
    const Positions order = removal_order(layer.view(), 0, 2, 7, 7);
    EXPECT_EQ(order, naive_order(layer.view(), 0, 2, 7)) << gap;
    EXPECT_EQ(order.back(), 4) << gap;
  }
}

// Two entries share nearly all weight, and a third has nearly all of the rest: after one of the two is
// removed, the next one dominates, and so on.
TEST(RemovalOrderOracle, IsMetWhereLeadsFollowOneAnother) {
  for (const double gap : {6.0, 25.0}) {
    for (const uint64_t seed : {41, 42, 43}) {
      RandomLayer layer({4, 2, 3, 2}, 10, 3, 0, seed);
      for (double& entry : layer.all_queries.numbers()) entry *= 0.3;
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t i = 0; i < 3; ++i) layer.all_queries.slice(h)(i, 0) = 1;
      }
      for (const int64_t g : {0, 1}) {
        const MutableMatrixView keys = layer.all_keys.slice(g);
        keys(1, 0) = keys(5, 0) = 2 * gap / layer.view().scale;
        keys(3, 0) = gap / layer.view().scale;
        // The two values are much alike, so that one of the two may be removed early.
        for (int64_t c = 0; c < 3; ++c)
          layer.all_values.slice(g)(5, c) = 1.001 * layer.all_values.slice(g)(1, c);
        const Positions order = removal_order(layer.view(), g, 3, 7, 7);
        EXPECT_EQ(order, naive_order(layer.view(), g, 3, 7)) << "gap " << gap << ", seed " << seed;
      }
    }
  }
}

TEST(RemovalOrder, KeepsWhoseRestUnderflowsToTheLast) {
  const PowerLayer layer({1, std::exp(8), 1, 1}, {1, 2, 3, 4}, {{100}}, 4);
  EXPECT_EQ(removal_order(layer.view(), 0, 1, 3, 3).back(), 1);
}

RC_GTEST_PROP(RemovalOrderProperty, OfFewerIsThePrefixOfThatOfMore, ()) {
  const RandomLayer layer({4, 2, 3, 2}, 12, 3, 0, static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t g = *test::integer(0, 1), count = *test::integer(0, 9);
  const Positions all = removal_order(layer.view(), g, 3, 9, 9);
  const Positions some = removal_order(layer.view(), g, 3, 9, count);
  RC_ASSERT(std::ssize(some) == count);
  RC_ASSERT(std::equal(some.begin(), some.end(), all.begin()));
  Positions sorted = all;
  std::ranges::sort(sorted);
  RC_ASSERT(sorted == range(0, 9));
}

// ---- every selection against the exhaustive optimum

constexpr int64_t kSmall = 10, kWindow = 2, kCandidates = kSmall - kWindow;

Policy chosen(Score score, Selection selection) { return {SnapKv{kWindow, 1}, score, selection, {}, {}}; }

const std::vector<std::pair<std::string, Policy>> kSelections{
    {"top-k by attention", chosen({}, TopK())},
    {"top-k by obcache-value", chosen(ObcacheValue(), TopK())},
    {"top-k by obcache-key", chosen(ObcacheKey(), TopK())},
    {"top-k by obcache-joint", chosen(ObcacheJoint(), TopK())},
    {"top-k by exact", chosen(ExactRemoval(), TopK())},
    {"critical", chosen({}, Critical())},
    {"theta-sweep", chosen({}, ThetaSweep())},
    {"greedy", chosen({}, Greedy())},
};

Positions evicted(const Positions& kept) {
  Positions result;
  std::ranges::set_difference(range(0, kSmall), kept, std::back_inserter(result));
  return result;
}

// The change of the outputs by removing a set; the window's logits are computed once
// per layer, for many sets.
class RemovalError {
 public:
  explicit RemovalError(const RandomLayer& layer) : values_(layer.view().values.slice(0)) {
    const LayerView view = layer.view();
    for (int64_t h = 0; h < view.shape.query_heads; ++h) {
      logits_.push_back(attention_logits(view.queries.slice(h), view.keys.slice(0), view.scale));
    }
  }
  // sum_{h, i} || o' - o ||^2
  double operator()(const Positions& removed) const {
    double error = 0;
    for (const Matrix& logits : logits_) {
      for (int64_t i = 0; i < kWindow; ++i) {
        const int64_t seen = kCandidates + i + 1;
        const auto change = removal_change(logits.row(i).first(seen), values_.middle_rows(0, seen), removed);
        error += ValueSpace().squared_norm(change);
      }
    }
    return error;
  }
  // The smallest error over all sets of `count` candidates.
  double optimum(int64_t count) const {
    double least = std::numeric_limits<double>::infinity();
    for (unsigned bits = 0; bits < 1U << kCandidates; ++bits) {
      Positions removed;
      for (int64_t j = 0; j < kCandidates; ++j) {
        if ((bits >> j & 1U) != 0) removed.push_back(j);
      }
      if (std::ssize(removed) == count) least = std::min(least, (*this)(removed));
    }
    return least;
  }

 private:
  MatrixView values_;
  std::vector<Matrix> logits_;
};

RandomLayer tiny_layer(uint64_t seed) { return {{2, 1, 3, 4}, kSmall, kWindow, 0, seed}; }

// Covers the rounding of two sums of the same squares.
constexpr double kSame = 1e-9;

struct Gap {
  double log_sum = 0, worst = 1;
  int64_t optimal = 0;

  void add(double ratio) {
    log_sum += std::log(ratio);
    worst = std::max(worst, ratio);
    optimal += ratio <= 1 + kSame;
  }
};

TEST(ExhaustiveOptimum, IsNoMoreThanTheErrorOfAnySelection) {
  constexpr int64_t kLayers = 60;
  std::cout << "summed squared removal error over that of the best set, " << kLayers << " random layers of "
            << kCandidates << " candidates, 2 query heads, " << kWindow << " queries\n";
  for (const int64_t leaving : {2, 4, 6}) {
    std::vector<Gap> gaps(kSelections.size());
    for (uint64_t seed = 0; seed < kLayers; ++seed) {
      const RandomLayer layer = tiny_layer(1000 + seed);
      const RemovalError error(layer);
      const double optimum = error.optimum(leaving);
      ASSERT_GT(optimum, 0);
      const auto session = make_session();
      for (size_t s = 0; s < kSelections.size(); ++s) {
        const auto kept =
            session->compress(layer.view(), kSelections[s].second, Positions{kSmall - leaving}).kept;
        const double ratio = error(evicted(kept[0])) / optimum;
        EXPECT_GE(ratio, 1 - kSame) << kSelections[s].first;
        gaps[s].add(ratio);
      }
    }
    for (size_t s = 0; s < gaps.size(); ++s) {
      std::cout << "  " << leaving << " of " << kCandidates << " leave, " << std::left << std::setw(23)
                << kSelections[s].first << "geometric mean " << std::fixed << std::setprecision(3)
                << std::exp(gaps[s].log_sum / kLayers) << ", worst " << gaps[s].worst << ", optimal in "
                << gaps[s].optimal << "\n";
    }
    // No theorem holds for more than one removal, but on these layers greedy is better by
    // far: see the printed ratios.
    for (size_t s = 0; s + 1 < gaps.size(); ++s) {
      EXPECT_LT(gaps.back().log_sum, 0.7 * gaps[s].log_sum) << kSelections[s].first;
    }
  }
}

// With one removal the exact score is the set's error: both selections find the optimum.
TEST(ExhaustiveOptimum, IsReachedByGreedyAndByExactWhereOneLeaves) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomLayer layer = tiny_layer(2000 + seed);
    const RemovalError error(layer);
    const double optimum = error.optimum(1);
    for (const auto& [name, policy] : kSelections) {
      if (name != "greedy" && name != "top-k by exact") continue;
      const auto kept = make_session()->compress(layer.view(), policy, Positions{kSmall - 1}).kept;
      EXPECT_LE(error(evicted(kept[0])), optimum * (1 + kSame)) << name << ", seed " << seed;
    }
  }
}

TEST(Greedy, RecordsTheHostsAttentionScore) {
  const RandomLayer layer = random_layer(2, 3);
  const Policy policy{kHost, {}, Greedy(), {}, {}};
  const auto greedy = make_session()->compress(layer.view(), policy, different_budgets(2));
  const auto top_k = make_session()->compress(layer.view(), kTopK, different_budgets(2));
  EXPECT_TRUE(std::ranges::equal(greedy.score.numbers(), top_k.score.numbers()));
  EXPECT_EQ(greedy.score_positions, top_k.score_positions);
  EXPECT_FALSE(greedy.stage_two_score.has_value());
  EXPECT_FALSE(greedy.projected_value_norms.has_value());
  EXPECT_NE(greedy.kept, top_k.kept);
}

TEST(Greedy, KeepsWhoIsNotRemovedForEveryBudget) {
  const RandomLayer layer = random_layer(2, 4);
  const Policy policy{kHost, {}, Greedy(), {}, {}};
  const int64_t candidates = kTokens - kHost.window;
  const auto session = make_session();  // its cached removal orders serve all budgets
  for (const int64_t budget : {20, 8, 29, 6, 30}) {
    const auto kept = session->compress(layer.view(), policy, Positions{budget, 13}).kept;
    for (const int64_t g : {0, 1}) {
      Positions expected = range(0, kTokens);
      for (const int64_t j :
           removal_order(layer.view(), g, kHost.window, candidates, kTokens - (g == 0 ? budget : 13))) {
        std::erase(expected, j);
      }
      EXPECT_EQ(kept[g], expected) << "budget " << budget;
    }
  }
}

}  // namespace
}  // namespace kvbound::reference::greedy_test
