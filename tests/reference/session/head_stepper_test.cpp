// The protocol of steps that the session and teacher-forced replays share.
#include <gtest/gtest.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/session/head_stepper.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/session_cases.hpp"

namespace kvbound::reference::head_stepper_test {
namespace {

using namespace test;

constexpr int64_t kBudget = 9;
// One query head per KV head, so that both have the same index.
const LayerShape kShape{2, 2, 6, 9};

Policy policy_of(const Host& host, const Merge& merge = NoMerge()) { return {host, {}, {}, {}, merge}; }
const std::vector<Policy> kEvicting{policy_of(H2o{4, 1, 2}), policy_of(Tova{1}), policy_of(StreamingLlm{3}),
                                    policy_of(Tova{1}, D2o{{std::nullopt}})};

MatrixView row(MatrixView rows, int64_t g) { return rows.middle_rows(g, 1); }

// A stepper of KV head 0 after the prompt, with the entries in its cache that a session keeps.
struct Stepped {
  Stepped(const RandomLayer& random, const Policy& policy)
      : layer(random), view(random.view()), stepper(view, policy, 0, kBudget) {
    const PromptRecord record = make_session()->compress(view, policy, Positions{kBudget, kBudget});
    stepper.fill(view, record.kept[0]);
    if (rules_of(policy.merge).merges) {
      stepper.merge(view, evict_first(view.keys.slice(0), record.kept[0], *rules_of(policy.merge).target),
                    nullptr);
    }
    if (!evicts(policy.host)) return;
    Matrix scores(1, view.prompt_tokens());
    for (int64_t j = 0; j < std::ssize(record.score_positions); ++j) scores(0, j) = record.score(0, j);
    stepper.begin_evicting(view, scores, {});
  }
  Matrix attend(int64_t t) {
    const StepView step = layer.step(t);
    stepper.enter(layer.tokens + t, step.keys.row(0), step.values.row(0));
    return stepper.attend(row(step.queries, 0));
  }
  EvictedEntry evict(int64_t t, int64_t entry, std::optional<int64_t> into = std::nullopt) {
    return stepper.evict(entry, row(layer.step(t).queries, 0), into);
  }

  const RandomLayer& layer;
  const LayerView view;
  HeadStepper stepper;
};

TEST(HeadStepper, ByItsOwnChoicesIsTheSession) {
  const RandomLayer layer(kShape, kTokens, kRecorded, 6, 61);
  for (const Policy& policy : kEvicting) {
    const auto session = make_session();
    session->compress(layer.view(), policy, Positions{kBudget, kBudget});
    Stepped head(layer, policy);
    for (int64_t t = 0; t < 6; ++t) {
      const StepRecord record = session->step(layer.step(t));
      const Matrix output = head.attend(t);
      EXPECT_TRUE(std::ranges::equal(output.row(0), record.output.row(0)));
      const std::optional<int64_t> own = head.stepper.own_choice();
      ASSERT_TRUE(own) << "one more than the budget";
      const EvictedEntry evicted = head.evict(t, *own);
      EXPECT_EQ(evicted.position, record.evicted[0]);
      if (rules_of(policy.merge).merges) {
        EXPECT_EQ(evicted.merged_into, record.merged_into[0]);
        EXPECT_EQ(evicted.merge.counts.merged, 1);
      }
      EXPECT_EQ(head.stepper.cache().entries(), kBudget);
    }
  }
}

TEST(HeadStepper, EvictsWhatItIsTold) {
  const RandomLayer layer(kShape, kTokens, kRecorded, 6, 62);
  for (const Policy& policy : kEvicting) {
    Stepped head(layer, policy);
    for (int64_t t = 0; t < 6; ++t) {
      head.attend(t);
      const int64_t own = *head.stepper.own_choice();
      const int64_t forced = own == 0 ? 1 : 0;
      const int64_t position = head.stepper.cache().positions[forced];
      const int64_t kept = head.stepper.cache().positions[own];
      EXPECT_EQ(head.evict(t, forced).position, position);
      EXPECT_EQ(head.stepper.cache().find(position), -1);
      EXPECT_GE(head.stepper.cache().find(kept), 0);
    }
  }
}

TEST(HeadStepper, MergesIntoWhatItIsToldOrDropsTheEntry) {
  const RandomLayer layer(kShape, kTokens, kRecorded, 2, 63);
  Stepped head(layer, kEvicting.back());
  head.attend(0);
  const HeadCache& cache = head.stepper.cache();
  const int64_t entry = *head.stepper.own_choice();
  const int64_t into = cache.positions[entry == 0 ? 1 : 0];
  const std::vector<double> before(cache.values.row(cache.find(into)).begin(),
                                   cache.values.row(cache.find(into)).end());
  const EvictedEntry merged = head.evict(0, entry, into);
  EXPECT_EQ(merged.merged_into, into);
  EXPECT_FALSE(std::ranges::equal(cache.values.row(cache.find(into)), before));
  head.attend(1);
  const HeadCache unmerged = head.stepper.cache();
  const int64_t next = *head.stepper.own_choice();
  const EvictedEntry dropped = head.evict(1, next, kNotMerged);
  EXPECT_EQ(dropped.merged_into, kNotMerged);
  EXPECT_TRUE(dropped.changed.empty());
  for (const int64_t position : cache.positions) {
    EXPECT_TRUE(std::ranges::equal(cache.values.row(cache.find(position)),
                                   unmerged.values.row(unmerged.find(position))));
  }
}

TEST(HeadStepper, OfAHostThatEvictsNothingOnlyGrows) {
  const RandomLayer layer(kShape, kTokens, kRecorded, 3, 64);
  Stepped head(layer, policy_of(SnapKv{6, 5}));
  for (int64_t t = 0; t < 3; ++t) {
    head.attend(t);
    EXPECT_FALSE(head.stepper.own_choice());
    EXPECT_EQ(head.stepper.cache().entries(), kBudget + t + 1);
    EXPECT_EQ(head.stepper.newest(), kTokens + t);
  }
  EXPECT_FALSE(head.stepper.evicts());
}

}  // namespace
}  // namespace kvbound::reference::head_stepper_test
