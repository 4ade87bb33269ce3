#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/replay/layer_replay.hpp>

#include "support/session_cases.hpp"
#include "support/threads.hpp"
#include "support/trace_layer.hpp"

namespace kvbound::sim::evictions_test {
namespace {

const auto* const kOneThread = testing::AddGlobalTestEnvironment(new test::OneThread);

using test::Positions;

constexpr int64_t kEntries = 14, kSteps = 12, kTokens = 30;

traces::Layer layer_of(uint64_t seed) { return test::trace_layer({{4, 2, 6, 9}, kTokens, 8, kSteps, seed}); }

Policy policy_of(Host host, Score score = {}, Selection selection = {}) {
  return {host, score, selection, {}, {}};
}
Selection critical(std::optional<Decimal> alpha) {
  Critical options;
  options.alpha = alpha;
  return options;
}
const H2o kH2o{6, 1, 3};

std::vector<Policy> policies() {
  return {policy_of(kH2o),
          policy_of(Tova{2}),
          policy_of(StreamingLlm{4}),
          policy_of(kH2o, ObcacheJoint{{Space::projected}}),
          policy_of(Tova{0}, ExactRemoval{}),
          policy_of(kH2o, ExactRemoval{}),
          policy_of(kH2o, {}, critical(Decimal{5, 1})),
          policy_of(Tova{1}, {}, critical(std::nullopt)),
          policy_of(kH2o, {}, ThetaSweep{})};
}

// The evictions of all KV heads and steps, and how they were judged.
struct Judgement {
  std::vector<Positions> teacher_forced;  // [kv_heads] of [steps]
  TensorAgreement agreement;              // without elements if no evictions are claimed
};

Judgement judge_evicted(const traces::Layer& layer, const TestedImplementation& implementation,
                        const PromptRecord& record, const PromptErrors& errors,
                        const std::vector<Positions>& kept, const std::optional<Positions>& evicted) {
  LayerClaims claims;
  claims.evicted = evicted;
  LayerReplay replay(layer, implementation, record, errors, kept, claims);
  replay.run();
  Judgement found{std::vector<Positions>(kept.size()), {}};
  for (const StepRecord& step : replay.record(nullptr).steps) {
    for (size_t g = 0; g < kept.size(); ++g) found.teacher_forced[g].push_back(step.evicted[g]);
  }
  if (evicted) found.agreement = replay.agreements().front();
  return found;
}

// A tested implementation, and the reference's record of the prompt.
struct Case {
  Case(const traces::Layer& layer_, const Policy& policy,
       const reference::Arithmetic& arithmetic = reference::double_precision())
      : layer(layer_),
        implementation{policy, kEntries, kSteps, arithmetic, Dtype::f64},
        prompt(layer.prompt()),
        session(reference::make_session()),
        record(session->compress(prompt, policy, Positions(layer.shape.kv_heads, kEntries))),
        errors(prompt, implementation, record),
        kept(record.kept) {}

  // The reference session's own evictions.
  Positions own() {
    Positions left;
    for (int64_t t = 0; t < kSteps; ++t) {
      const StepRecord step = session->step(layer.step(t));
      left.insert(left.end(), step.evicted.begin(), step.evicted.end());
    }
    return left;
  }

  Judgement judge(const std::optional<Positions>& left) const {
    return judge_evicted(layer, implementation, record, errors, kept, left);
  }

  const traces::Layer& layer;
  TestedImplementation implementation;
  LayerView prompt;
  std::unique_ptr<Session> session;
  PromptRecord record;
  PromptErrors errors;
  std::vector<Positions> kept;
};

TEST(Evictions, OfTheReferenceWithItselfIsCompleteAndWithoutSwaps) {
  for (const uint64_t seed : {1, 2, 3}) {
    const traces::Layer layer = layer_of(seed);
    for (const Policy& policy : policies()) {
      Case given(layer, policy);
      const Positions left = given.own();
      const Judgement found = given.judge(left);
      EXPECT_EQ(found.agreement.elements, 2 * kSteps);
      EXPECT_EQ(found.agreement.judged, 2 * kSteps);
      EXPECT_EQ(found.agreement.outside, 0);
      EXPECT_EQ(found.agreement.near_tie_swaps, 0);
      EXPECT_FALSE(found.agreement.worst);
      const Judgement unclaimed = given.judge({});
      EXPECT_EQ(unclaimed.teacher_forced, found.teacher_forced)
          << "where nothing is claimed, the reference's own choice leaves";
      EXPECT_EQ(unclaimed.agreement.elements, 0);
      for (int64_t t = 0; t < kSteps; ++t) {
        for (int64_t g = 0; g < 2; ++g) {
          EXPECT_EQ(found.teacher_forced[g][t], left[2 * t + g]);
        }
      }
    }
  }
}

// The positions in KV head g's cache at step t, the new entry included.
std::set<int64_t> cache_at(const Case& given, const Positions& left, int64_t t, int64_t g) {
  std::set<int64_t> cache(given.kept[g].begin(), given.kept[g].end());
  for (int64_t step = 0; step <= t; ++step) cache.insert(kTokens + step);
  for (int64_t step = 0; step < t; ++step) cache.erase(left[2 * step + g]);
  return cache;
}

TEST(Evictions, FindsEveryOtherEvictionAtTheStepWhereItHappens) {
  const traces::Layer layer = layer_of(4);
  for (const Policy& policy : policies()) {
    Case given(layer, policy);
    const Positions own = given.own();
    for (const int64_t t : {0, 5}) {
      const auto at = static_cast<size_t>(2 * t + 1);
      for (const int64_t other : cache_at(given, own, t, 1)) {
        if (other == own[at]) continue;
        Positions left(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        left[at] = other;
        given.implementation.steps = t + 1;
        const Judgement found = given.judge([&] {
          left.resize(2 * (t + 1));
          return left;
        }());
        ASSERT_EQ(found.agreement.outside, 1);
        EXPECT_EQ(found.agreement.worst.value().index, (Positions{t, 1}));
        EXPECT_EQ(found.agreement.worst.value().claimed, static_cast<double>(other));
        EXPECT_EQ(found.teacher_forced[1].back(), other)
            << "the cache follows the implementation all the same";
      }
    }
  }
}

TEST(Evictions, SaysWhatIsWrongWithAnEvictionThatCannotBe) {
  const traces::Layer layer = layer_of(5);
  Case given(layer, policy_of(kH2o));
  const Positions own = given.own();
  const auto note = [&](int64_t claimed) {
    Positions left = own;
    left[2 * 3] = claimed;
    const Judgement found = given.judge(left);
    EXPECT_GE(found.agreement.outside, 1);
    return found.agreement.worst.value().note;
  };
  EXPECT_EQ(note(own[2 * 2]), "step 3, KV head 0: position " + std::to_string(own[2 * 2]) +
                                  " was evicted, which is not in the cache");
  EXPECT_EQ(note(-1),
            "step 3, KV head 0: nothing was evicted, but the cache has 15 entries and the budget is 14");
  EXPECT_EQ(note(-99), "step 3, KV head 0: position -99 was evicted, which is not in the cache");
  EXPECT_EQ(note(kTokens + 4), "step 3, KV head 0: position 34 was evicted, which is not in the cache");
  EXPECT_EQ(note(0), "step 3, KV head 0: position 0 was evicted, which is always kept");
  EXPECT_EQ(note(kTokens + 3), "step 3, KV head 0: position 33 was evicted, which is always kept");
}

TEST(Evictions, LetsTheReferencesChoiceLeaveWhereTheClaimedOneCannot) {
  const traces::Layer layer = layer_of(6);
  for (const Policy& policy : policies()) {
    Case given(layer, policy);
    const Positions own = given.own();
    for (const int64_t claimed : {int64_t{-1}, int64_t{1000}}) {
      Positions left = own;
      left[2 * 3] = claimed;
      const Judgement found = given.judge(left);
      EXPECT_EQ(found.agreement.outside, 1) << "and nothing that follows is wrong";
      EXPECT_EQ(found.teacher_forced, given.judge(own).teacher_forced);
    }
  }
}

// Makes entry `twin` of KV head 1 equal to entry `model` up to a factor of 1 + 1e-9.
void make_twin(traces::Layer& layer, int64_t model, int64_t twin) {
  for (Tensor* tensor : {&layer.keys, &layer.values}) {
    std::ranges::transform(tensor->slice(1).row(model), tensor->slice(1).row(twin).begin(),
                           [](double x) { return x * (1 + 1e-9); });
  }
}

TEST(Evictions, AllowsWhatOnlyRoundingTellsApartAndCountsIt) {
  constexpr int64_t kWindowBegins = kTokens - 6;
  for (const Policy& policy : policies()) {
    if (std::holds_alternative<StreamingLlm>(policy.host)) continue;
    int64_t cases = 0;
    for (uint64_t seed = 20; seed < 40; ++seed) {
      traces::Layer layer = layer_of(seed);
      Case before(layer, policy);
      before.implementation.steps = 1;
      const int64_t model = before.judge({}).teacher_forced[1][0];
      const auto twin = std::ranges::find_if(before.kept[1], [&](int64_t i) { return i >= 2 && i != model; });
      if (model < 2 || model >= kWindowBegins || *twin >= kWindowBegins) continue;  // not seen by all queries
      make_twin(layer, model, *twin);
      const std::vector<Positions> kept = before.kept;
      for (const bool single : {true, false}) {
        Case given(layer, policy, single ? reference::single_precision() : reference::double_precision());
        given.kept = kept;
        given.implementation.steps = 1;
        const std::vector<Positions> own = given.judge({}).teacher_forced;
        const bool twins = own[1][0] == model || own[1][0] == *twin;
        if (!twins) continue;  // another entry has a smaller score now
        const int64_t other = own[1][0] == model ? *twin : model;
        const Judgement found = given.judge(Positions{own[0][0], other});
        EXPECT_EQ(found.agreement.outside, single ? 0 : 1);
        EXPECT_EQ(found.agreement.near_tie_swaps, single ? 1 : 0);
        EXPECT_EQ(found.teacher_forced[1][0], other);
        if (found.agreement.worst) {
          EXPECT_NE(found.agreement.worst.value().note.find("both error bounds together are"),
                    std::string::npos);
          EXPECT_LT(found.agreement.worst.value().bound, found.agreement.worst.value().error);
        }
        ++cases;
      }
    }
    EXPECT_GE(cases, 4) << "this policy was hardly tried";
  }
}

TEST(Evictions, AreEvidenceOnlyWhereAnotherCouldHaveBeenFoundWrong) {
  const auto judged = [](const std::vector<double>& weights, int64_t position) {
    const traces::Layer layer = test::weighted_layer(5, {weights});
    const TestedImplementation tested{policy_of(Tova{0}), 5, 1, reference::single_precision(), Dtype::f64};
    const PromptRecord record =
        reference::make_session()->compress(layer.prompt(), tested.policy, Positions{5});
    const PromptErrors errors(layer.prompt(), tested, record);
    return judge_evicted(layer, tested, record, errors, record.kept, Positions{position}).agreement;
  };
  constexpr double kTie = 1 + 1e-8;
  const std::vector<double> ties{2, 2 * kTie, 2, 2 * kTie, 2, 2}, others{8, 2 * kTie, 7, 2, 6, 5};
  for (const int64_t position : {1, 4}) {
    const TensorAgreement found = judged(ties, position);
    EXPECT_EQ(found.outside, 0);
    EXPECT_EQ(found.judged, 0) << "any of them may be evicted";
  }
  EXPECT_EQ(judged(others, 3).judged, 1);
  EXPECT_EQ(judged(others, 1).near_tie_swaps, 1);
  EXPECT_EQ(judged(others, 1).judged, 1) << "the eviction of 4 would be wrong";
}

// Whether an implementation may evict, at the first step, the entry whose score exceeds the
// smallest one by a share of 1e-8.
bool may_evict_second_smallest(const Host& host, const reference::Arithmetic& prompt,
                               const reference::Arithmetic& steps) {
  const traces::Layer layer = test::weighted_layer(5, {{8, 2 * (1 + 1e-8), 7, 2, 6, 5}});
  TestedImplementation tested{policy_of(host), 5, 1, prompt, Dtype::f64};
  tested.arithmetic.attention = steps;
  const PromptRecord record =
      reference::make_session()->compress(layer.prompt(), tested.policy, Positions{5});
  const PromptErrors errors(layer.prompt(), tested, record);
  const auto judged = [&](int64_t position) {
    return judge_evicted(layer, tested, record, errors, record.kept, Positions{position}).agreement.outside ==
           0;
  };
  EXPECT_TRUE(judged(3));
  EXPECT_FALSE(judged(4));
  return judged(1);
}

TEST(Evictions, CountsTheErrorsOfThePromptAndOfEachStepAsTheHostAddsTheirScores) {
  const reference::Arithmetic exact = reference::double_precision(), single = reference::single_precision();
  for (const Host& host : {Host{H2o{1, 0, 1}}, Host{Tova{0}}}) {
    EXPECT_FALSE(may_evict_second_smallest(host, exact, exact));
    EXPECT_TRUE(may_evict_second_smallest(host, exact, single));
  }
  EXPECT_TRUE(may_evict_second_smallest(H2o{1, 0, 1}, single, exact)) << "the sum began with the prompt's";
  EXPECT_FALSE(may_evict_second_smallest(Tova{0}, single, exact)) << "the last step's alone count";
}

TEST(Evictions, JudgesH2oByTheSumOfAllStepsAndTovaByTheLastOne) {
  const traces::Layer layer = layer_of(8);
  Case h2o(layer, policy_of(H2o{6, 0, 3})), tova(layer, policy_of(Tova{0}));
  tova.kept = h2o.kept;
  tova.record.kept = h2o.kept;
  const Judgement by_sum = h2o.judge({}), by_last = tova.judge({});
  EXPECT_NE(by_sum.teacher_forced, by_last.teacher_forced);
  Positions left;
  for (size_t t = 0; t < kSteps; ++t) {
    for (size_t g = 0; g < 2; ++g) left.push_back(by_last.teacher_forced[g][t]);
  }
  EXPECT_GT(h2o.judge(left).agreement.outside, 0) << "forgetting is found";
}

TEST(Evictions, FollowsCachesThatHaveNotTheBudgetsSize) {
  const traces::Layer layer = layer_of(9);
  for (const Policy& policy : policies()) {
    Case given(layer, policy);
    given.kept[0].erase(given.kept[0].begin() + 5, given.kept[0].begin() + 9);  // keeps ten of fourteen
    for (int64_t i = 0; given.kept[1].size() < 17; ++i) {
      if (!std::ranges::binary_search(given.kept[1], i)) {
        given.kept[1].insert(std::ranges::lower_bound(given.kept[1], i), i);
      }
    }
    const Judgement found = given.judge({});
    for (size_t t = 0; t < kSteps; ++t) {
      EXPECT_EQ(found.teacher_forced[0][t] == -1, t < 4) << "nobody leaves before the budget is reached";
      EXPECT_NE(found.teacher_forced[1][t], -1);
    }
    const Judgement early = given.judge([&] {
      Positions left;
      for (size_t t = 0; t < kSteps; ++t)
        left.insert(left.end(), {found.teacher_forced[0][t], found.teacher_forced[1][t]});
      left[0] = given.kept[0][5];
      return left;
    }());
    EXPECT_GE(early.agreement.outside, 1);
    EXPECT_NE(early.agreement.worst.value().note.find("the cache has 11 entries and the budget is 14"),
              std::string::npos)
        << early.agreement.worst.value().note;
  }
}

TEST(Evictions, IsTheSameForAnyNumberOfThreads) {
  const traces::Layer layer = layer_of(10);
  Case given(layer, policy_of(kH2o, ExactRemoval{}));
  Positions left = given.own();
  std::swap(left[4], left[6]);
  const auto judged = [&] { return given.judge(left).agreement; };
  const TensorAgreement one = test::with_threads(1, judged), three = test::with_threads(3, judged);
  ASSERT_TRUE(one.worst);
  EXPECT_EQ(one.worst.value().note, three.worst.value().note);
  EXPECT_EQ(one.outside, three.outside);
}

}  // namespace
}  // namespace kvbound::sim::evictions_test
