// Decode steps of several layers or requests that are taken together: the bits of each alone.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/session/session.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/session.hpp>

#include "decoding_cases.hpp"

namespace kvbound::parity {
namespace {

// A layer or a request, and its budget.
struct Part {
  Decoding decoding;
  int64_t budget;

  Part(int64_t tokens, uint64_t seed, int64_t entries) : decoding{tokens, seed}, budget(entries) {}

  std::unique_ptr<Session> compressed(Dtype storage, const Policy& policy) const {
    std::unique_ptr<Session> session = cuda::KVBOUND_CUDA_BUILD::make_session(storage);
    session->compress(decoding.layer(), policy, std::vector<int64_t>{budget, budget});
    return session;
  }
};

// The layers of one prompt.
std::vector<Part> layers(int64_t count) {
  std::vector<Part> parts;
  for (int64_t l = 0; l < count; ++l) parts.emplace_back(kTokens, l, 20);
  return parts;
}

// Requests of different lengths and budgets.
std::vector<Part> requests(int64_t count) {
  std::vector<Part> parts;
  for (int64_t r = 0; r < count; ++r) parts.emplace_back(24 + 13 * r, 100 + r, 14 + 5 * (r % 4));
  return parts;
}

// Sessions and their decode steps.
struct Together {
  std::vector<Part> parts;  // whose numbers the steps view
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<SessionSteps> all;

  Together(std::vector<Part> of_parts, Dtype storage, const Policy& policy, int64_t steps = kSteps)
      : parts(std::move(of_parts)) {
    for (const Part& part : parts) {
      sessions.push_back(part.compressed(storage, policy));
      std::vector<StepView> views = part.decoding.steps();
      views.resize(steps);
      all.push_back({sessions.back().get(), std::move(views)});
    }
  }
  cuda::DeviceCounters take() {
    const cuda::DeviceCounters before = cuda::counters();
    sessions.front()->take_together(all);
    return cuda::counters() - before;
  }
};

void expect_same_as_one_by_one(const std::vector<Part>& parts, Dtype storage, const Policy& policy,
                               int64_t steps = kSteps) {
  Together together(parts, storage, policy, steps);
  together.take();
  for (size_t i = 0; i < parts.size(); ++i) {
    SCOPED_TRACE("part " + std::to_string(i));
    const std::vector<StepRecord> expected =
        parts[i].compressed(storage, policy)->steps(together.all[i].views);
    ASSERT_EQ(together.all[i].records.size(), expected.size());
    for (size_t t = 0; t < expected.size(); ++t) {
      SCOPED_TRACE("step " + std::to_string(t));
      expect_equal(together.all[i].records[t], expected[t]);
    }
  }
}

class SessionsTogether : public DeviceTest {};

class SessionsTogetherOf : public DeviceTest, public testing::WithParamInterface<NamedPolicy> {};

TEST_P(SessionsTogetherOf, GiveTheBitsOfOneByOne) {
  expect_same_as_one_by_one(requests(2), Dtype::bf16, GetParam().policy);
}

INSTANTIATE_TEST_SUITE_P(All, SessionsTogetherOf, testing::ValuesIn(policies()), name_of);

// Policies by which most is shared: attention alone, evictions by one and by two stages, and merges.
std::vector<Policy> some_policies() {
  KeepKv divided;  // by the share of the tokens so far
  divided.prediction.normalisation = Normalisation::paper;
  return {policy_of(SnapKv{kWindow, 3}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}),
          policy_of(H2o{kWindow, 2, {}}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}),
          policy_of(H2o{kWindow, 2, {}}, ObcacheJoint{}, TopK{}, AdaKv{}, NoMerge{}),
          policy_of(H2o{kWindow, 2, {}}, AttentionScore{}, Critical{}, Uniform{}, NoMerge{}),
          policy_of(StreamingLlm{2}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}),
          policy_of(Tova{2}, AttentionScore{}, TopK{}, Uniform{}, divided)};
}

TEST_F(SessionsTogether, ThirtyTwoLayersGiveTheBitsOfOneByOne) {
  for (const Policy& policy : some_policies()) expect_same_as_one_by_one(layers(32), Dtype::bf16, policy, 4);
}

TEST_F(SessionsTogether, EightRequestsOfDifferentLengthsGiveTheBitsOfOneByOne) {
  for (const Policy& policy : some_policies()) {
    for (const Dtype storage : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      expect_same_as_one_by_one(requests(8), storage, policy, 4);
    }
  }
}

// Heads that are rows of blocks in a grid go on along z behind the third one, and a few blocks have no row.
TEST_F(SessionsTogether, GiveTheSameBitsWhereAGridIsTooShortForTheirHeads) {
  for (const NamedPolicy& one :
       policies_named({"h2o+joint", "h2o+critical", "h2o+keepkv", "h2o+d2o", "h2o+kvmerger", "h2o+cam"})) {
    for (const Dtype storage : {Dtype::f32, Dtype::bf16}) {
      Together wide(requests(4), storage, one.policy, 2), narrow(requests(4), storage, one.policy, 2);
      wide.take();
      with_grid_rows(3, [&] { narrow.take(); });
      for (size_t i = 0; i < wide.all.size(); ++i) {
        SCOPED_TRACE(one.name + ", part " + std::to_string(i));
        ASSERT_EQ(narrow.all[i].records.size(), wide.all[i].records.size());
        for (size_t t = 0; t < wide.all[i].records.size(); ++t)
          expect_equal(narrow.all[i].records[t], wide.all[i].records[t]);
      }
    }
  }
}

TEST_F(SessionsTogether, ALayerTakesNoLaunchOfItsOwn) {
  for (const Policy& policy : some_policies()) {
    Together one(layers(1), Dtype::bf16, policy, 4), many(layers(32), Dtype::bf16, policy, 4);
    one.take();
    many.take();
    cuda::DeviceCounters alone = one.take(), together = many.take();
    EXPECT_GT(together.upload_bytes, 8 * alone.upload_bytes);
    EXPECT_GT(together.download_bytes, 8 * alone.download_bytes);
    together.upload_bytes = alone.upload_bytes;
    together.download_bytes = alone.download_bytes;
    EXPECT_EQ(together, alone);
  }
}

// More steps than a cache that keeps all has room for, after some that each has taken alone.
TEST_F(SessionsTogether, GrowAndGoOnFromAnyStep) {
  std::vector<Policy> policies{some_policies()[0], some_policies()[1], some_policies().back()};
  for (const Policy& policy : policies) {
    const std::vector<Part> parts = requests(2);
    Together together(parts, Dtype::bf16, policy, 3);
    for (const SessionSteps& each : together.all) each.session->steps(each.views);
    for (SessionSteps& each : together.all) {
      while (each.views.size() < 140) each.views.push_back(each.views[each.views.size() % 3]);
    }
    for (int round = 0; round < 2; ++round) together.take();
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::unique_ptr<Session> alone = parts[i].compressed(Dtype::bf16, policy);
      const std::vector<StepView>& views = together.all[i].views;
      alone->steps(std::span(views).first(3));
      alone->steps(views);
      const std::vector<StepRecord> expected = alone->steps(views);
      for (size_t t = 0; t < expected.size(); ++t) expect_equal(together.all[i].records[t], expected[t]);
    }
  }
}

// Steps that overflow are found again one by one.
TEST_F(SessionsTogether, TheFirstThatFailsIsFound) {
  const Policy policy = policy_of(H2o{kWindow, 2, {}}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{});
  std::vector<Part> parts = layers(4);
  for (const size_t wrong : {1, 3}) {
    Tensor& values = parts[wrong].decoding.values;
    for (int64_t g = 0; g < kShape.kv_heads; ++g) values.slice(g)(kTokens + 5, 0) = 1e300;
  }
  Together together(parts, Dtype::f32, policy);
  EXPECT_THROW(together.take(), NonFinite);
  EXPECT_EQ(together.all[0].records.size(), kSteps);
  for (const size_t without : {1, 2, 3}) EXPECT_TRUE(together.all[without].records.empty());
}

// Sessions go on together, in one order, until they are compressed again.
TEST_F(SessionsTogether, GoOnTogether) {
  const Policy policy = policy_of(H2o{kWindow, 2, {}}, AttentionScore{}, Critical{}, Uniform{}, NoMerge{});
  const std::vector<Part> parts = requests(2);
  Together together(parts, Dtype::bf16, policy);
  std::vector<std::vector<StepRecord>> records(2);
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 1}, {4, 16}}) {
    std::vector<SessionSteps> now;
    for (const SessionSteps& each : together.all) {
      const auto begin = each.views.begin() + first;
      now.push_back({each.session, {begin, begin + count}});
    }
    now.front().session->take_together(now);
    for (size_t i = 0; i < 2; ++i) std::ranges::move(now[i].records, std::back_inserter(records[i]));
  }
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<StepRecord> expected =
        parts[i].compressed(Dtype::bf16, policy)->steps(together.all[i].views);
    for (size_t t = 0; t < expected.size(); ++t) expect_equal(records[i][t], expected[t]);
  }
  EXPECT_THROW(together.sessions[1]->step(together.all[1].views[0]), ShapeMismatch);
  std::swap(together.all[0], together.all[1]);
  EXPECT_THROW(together.all[0].session->take_together(together.all), ShapeMismatch) << "in another order";
  std::swap(together.all[0], together.all[1]);
  const std::vector<int64_t> budgets{parts[1].budget, parts[1].budget};
  together.sessions[1]->compress(parts[1].decoding.layer(), policy, budgets);
  EXPECT_THROW(together.take(), ShapeMismatch) << "one goes on, the other begins";
  together.sessions[1]->compress(parts[1].decoding.layer(), policy, budgets);
  expect_equal(together.sessions[1]->step(together.all[1].views[0]), records[1][0]);
}

// Other policies, other numbers of steps, or rebuilds: each by itself, with the same results.
TEST_F(SessionsTogether, WhatCannotShareLaunchesIsTakenOneByOne) {
  KeepKv periodic;
  periodic.period = kPeriod;
  expect_same_as_one_by_one(layers(3), Dtype::bf16,
                            policy_of(Tova{2}, AttentionScore{}, TopK{}, Uniform{}, periodic));
  const Policy h2o = policy_of(H2o{kWindow, 2, {}}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}),
               tova = policy_of(Tova{2}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{});
  const std::vector<Part> parts = layers(2);
  Together mixed(parts, Dtype::bf16, h2o);
  mixed.sessions[1] = parts[1].compressed(Dtype::bf16, tova);
  mixed.all[1].session = mixed.sessions[1].get();
  mixed.all[1].views.resize(3);
  mixed.take();
  const std::vector<StepRecord> expected = parts[1].compressed(Dtype::bf16, tova)->steps(mixed.all[1].views);
  ASSERT_EQ(mixed.all[1].records.size(), 3U);
  for (size_t t = 0; t < 3; ++t) expect_equal(mixed.all[1].records[t], expected[t]);
  EXPECT_EQ(mixed.all[0].records.size(), kSteps);
}

TEST_F(SessionsTogether, GiveTheSameUnderEverySchedule) {
  in_every_schedule([] {
    Together together(requests(2), Dtype::bf16, some_policies()[1], 3);
    together.take();
    std::vector<double> outputs;
    for (const SessionSteps& each : together.all) {
      for (const StepRecord& record : each.records) {
        outputs.insert(outputs.end(), record.output.numbers().begin(), record.output.numbers().end());
      }
    }
    return outputs;
  });
}

}  // namespace
}  // namespace kvbound::parity
