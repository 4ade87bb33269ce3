// What a session asks of the device beside its kernels: waits, transfers, memory.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/session/session.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

#include "decoding_cases.hpp"

namespace kvbound::parity {
namespace {

constexpr int64_t kStepsAtOnce = 16;  // of a session

class SessionRequests : public DeviceTest {};

class SessionRequestsOf : public DeviceTest, public testing::WithParamInterface<NamedPolicy> {
 protected:
  std::unique_ptr<Session> compressed(OperationTimes* times = nullptr) const {
    std::unique_ptr<Session> session = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16, times);
    session->compress(decoding_.layer(), GetParam().policy, std::vector<int64_t>(kShape.kv_heads, 20));
    return session;
  }

  Decoding decoding_;
};

// The first step may allocate, and rehearses a rebuild where the policy has a period.
TEST_P(SessionRequestsOf, AStepWaitsOnceAndAllocatesNothing) {
  const std::unique_ptr<Session> session = compressed();
  for (int64_t t = 0; t < kSteps; ++t) {
    const cuda::DeviceCounters before = cuda::counters();
    const bool rebuilt = session->step(decoding_.step(t)).rebuilt;
    const cuda::DeviceCounters requests = cuda::counters() - before;
    EXPECT_EQ(requests.synchronisations, 1) << "step " << t;
    EXPECT_GT(requests.launches, 0);
    if (t > 0) {
      EXPECT_EQ(requests.allocations, 0) << "step " << t;
    }
    if (rebuilt || (t == 0 && rules_of(GetParam().policy.merge).period)) continue;
    EXPECT_EQ(requests.uploads, 1) << "step " << t;
    EXPECT_EQ(requests.downloads, 1) << "step " << t;
  }
}

TEST_P(SessionRequestsOf, StepsTakenTogetherGiveTheSameBitsAndWaitOnceForSixteen) {
  const std::unique_ptr<Session> one_by_one = compressed(), together = compressed();
  std::vector<StepRecord> expected;
  for (int64_t t = 0; t < kSteps; ++t) expected.push_back(one_by_one->step(decoding_.step(t)));
  const cuda::DeviceCounters before = cuda::counters();
  const std::vector<StepRecord> records = together->steps(decoding_.steps());
  EXPECT_EQ((cuda::counters() - before).synchronisations, (kSteps + kStepsAtOnce - 1) / kStepsAtOnce);
  ASSERT_EQ(std::ssize(records), kSteps);
  for (int64_t t = 0; t < kSteps; ++t) {
    SCOPED_TRACE("step " + std::to_string(t));
    expect_equal(records[t], expected[t]);
  }
}

// Attention, its join, and the eviction, which also appends the next step's entry.
TEST_F(SessionRequests, SixteenStepsThatEvictLaunchThreeKernelsEachAndCopyOnceEachWay) {
  const Decoding decoding;
  std::vector<StepView> steps = decoding.steps();
  steps.resize(kStepsAtOnce);
  for (const Host& host : {Host{H2o{kWindow, 2, {}}}, Host{Tova{2}}, Host{StreamingLlm{2}}}) {
    const std::unique_ptr<Session> session = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16);
    session->compress(decoding.layer(), policy_of(host, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}),
                      std::vector<int64_t>(kShape.kv_heads, 20));
    for (int round = 0; round < 3; ++round) {  // as they are, recorded, repeated
      const cuda::DeviceCounters before = cuda::counters();
      session->steps(steps);
      const cuda::DeviceCounters requests = cuda::counters() - before;
      EXPECT_EQ(requests.launches, 3 * kStepsAtOnce + 1) << "and one for the first entry";
      EXPECT_EQ(requests.uploads, 1);
      EXPECT_EQ(requests.downloads, 1);
      EXPECT_EQ(requests.synchronisations, 1);
      EXPECT_EQ(requests.moves, round == 0 ? 1 : 0) << "of the flags, to memory that has room for results";
      EXPECT_EQ(requests.fills, 0);
    }
  }
}

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// A step among sixteen, of which nothing can be used.
TEST_F(SessionRequests, AStepThatFailsIsNamedAlikeAndAllowsNothingButCompress) {
  Decoding decoding;
  const std::unique_ptr<Session> one_by_one = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::f32),
                                 together = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::f32);
  const auto compress = [&](Session& session) {
    session.compress(decoding.layer(),
                     policy_of(H2o{kWindow, 2, {}}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}),
                     std::vector<int64_t>(kShape.kv_heads, 20));
  };
  const std::string incomplete = failure_of([&] { together->steps(decoding.steps()); });
  EXPECT_NE(incomplete.find("not compressed"), std::string::npos) << incomplete;
  compress(*one_by_one);
  compress(*together);
  double& number = decoding.values.slice(1)(kTokens + 5, 0);
  const double before = std::exchange(number, 1e300);
  const std::string failure = failure_of([&] {
    for (int64_t t = 0; t < kSteps; ++t) one_by_one->step(decoding.step(t));
  });
  EXPECT_NE(failure.find("output"), std::string::npos) << failure;
  EXPECT_EQ(failure_of([&] { together->steps(decoding.steps()); }), failure);
  number = before;
  for (Session* session : {one_by_one.get(), together.get()}) {
    EXPECT_EQ(failure_of([&] { session->step(decoding.step(0)); }), incomplete);
    EXPECT_EQ(failure_of([&] { session->steps(decoding.steps()); }), incomplete);
  }
  std::vector<SessionSteps> both{{one_by_one.get(), decoding.steps()}, {together.get(), decoding.steps()}};
  EXPECT_EQ(failure_of([&] { together->take_together(both); }), incomplete);
  compress(*one_by_one);
  compress(*together);
  const std::vector<StepRecord> records = together->steps(decoding.steps());
  for (int64_t t = 0; t < kSteps; ++t) expect_equal(one_by_one->step(decoding.step(t)), records[t]);
}

// Of a long prompt a rebuild takes hardly more memory than the one before, and the pool's
// blocks have hardly more room.
TEST_F(SessionRequests, RebuildsOfALongPromptAllocateNothing) {
  const Decoding decoding{320};
  for (const NamedPolicy& tested : policies()) {
    if (!rules_of(tested.policy.merge).period) continue;
    SCOPED_TRACE(tested.name);
    const std::unique_ptr<Session> session = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16);
    session->compress(decoding.layer(), tested.policy, std::vector<int64_t>(kShape.kv_heads, 64));
    session->step(decoding.step(0));
    for (int64_t t = 1; t < kSteps; ++t) {
      const cuda::DeviceCounters before = cuda::counters();
      session->step(decoding.step(t));
      EXPECT_EQ((cuda::counters() - before).allocations, 0) << "step " << t;
    }
  }
}

// A rebuilt cache that is as large as the one before is where that was: the same recorded steps go on.
TEST_F(SessionRequests, RecordedStepsOutliveRebuilds) {
  const Decoding decoding{320};
  for (const NamedPolicy& tested : policies()) {
    const bool evicts = rules_of(tested.policy.host, decoding.tokens, 0).evicts;
    if (!rules_of(tested.policy.merge).period || !evicts) continue;
    SCOPED_TRACE(tested.name);
    const std::unique_ptr<Session> session = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16);
    session->compress(decoding.layer(), tested.policy, std::vector<int64_t>(kShape.kv_heads, 64));
    const cuda::DeviceCounters before = cuda::counters();
    session->steps(decoding.steps());
    EXPECT_EQ((cuda::counters() - before).recordings, 1);
  }
}

// A session that measures times queues every operation by itself.
TEST_P(SessionRequestsOf, RecordedStepsGiveTheBitsOfOperationsThatAreQueuedOneByOne) {
  OperationTimes times;
  const std::unique_ptr<Session> recorded = compressed(), one_by_one = compressed(&times);
  const std::vector<StepRecord> records = recorded->steps(decoding_.steps()),
                                expected = one_by_one->steps(decoding_.steps());
  for (int64_t t = 0; t < kSteps; ++t) {
    SCOPED_TRACE("step " + std::to_string(t));
    expect_equal(records[t], expected[t]);
  }
  EXPECT_FALSE(times.entries().empty());
}

TEST_F(SessionRequests, ACompressionForgetsTheRecordedStep) {
  const Decoding decoding;
  const auto compress = [&](Session& session, int64_t budget) {
    session.compress(decoding.layer(),
                     policy_of(H2o{kWindow, 2, {}}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}),
                     std::vector<int64_t>(kShape.kv_heads, budget));
  };
  const std::unique_ptr<Session> twice = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16),
                                 once = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16);
  compress(*twice, 12);
  for (int i = 0; i < 2; ++i) twice->steps(decoding.steps());  // as they are, recorded
  compress(*twice, 30);
  compress(*once, 30);
  const std::vector<StepRecord> records = twice->steps(decoding.steps()),
                                expected = once->steps(decoding.steps());
  for (int64_t t = 0; t < kSteps; ++t) expect_equal(records[t], expected[t]);
}

INSTANTIATE_TEST_SUITE_P(All, SessionRequestsOf, testing::ValuesIn(policies()), name_of);

}  // namespace
}  // namespace kvbound::parity
