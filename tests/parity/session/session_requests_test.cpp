// What a session asks of the device beside its kernels: waits, transfers, memory.
#include <algorithm>
#include <cstdint>
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

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

constexpr int64_t kTokens = 48, kWindow = 8, kSteps = 20, kPeriod = 4;
constexpr int64_t kStepsAtOnce = 16;  // of a session
constexpr LayerShape kShape{4, 2, 8, 12};

// A layer and its decode steps.
struct Decoding {
  int64_t tokens = kTokens;
  Tensor keys = random_tensor(1, kShape.kv_heads, tokens + kSteps, kShape.head_dim);
  Tensor values = random_tensor(2, kShape.kv_heads, tokens + kSteps, kShape.head_dim);
  Tensor queries = random_tensor(3, kShape.query_heads, kWindow + kSteps, kShape.head_dim);
  Tensor projection = random_tensor(4, 1, kShape.query_heads* kShape.head_dim, kShape.model_dim);

  LayerView layer() const {
    return {kShape,
            0.35,
            keys.view().middle_rows(0, tokens),
            values.view().middle_rows(0, tokens),
            queries.view().middle_rows(0, kWindow),
            projection.slice(0)};
  }
  StepView step(int64_t t) const {
    const auto row_of_each = [](const Tensor& tensor, int64_t row) {
      const TensorView rows = tensor.view().middle_rows(row, 1);
      return MatrixView(rows.data, rows.slices, rows.cols, rows.slice_stride);
    };
    return {row_of_each(keys, tokens + t), row_of_each(values, tokens + t),
            row_of_each(queries, kWindow + t)};
  }
  std::vector<StepView> steps() const {
    std::vector<StepView> all;
    for (int64_t t = 0; t < kSteps; ++t) all.push_back(step(t));
    return all;
  }
};

struct NamedPolicy {
  std::string name;
  Policy policy;
};

Policy policy_of(Host host, Score score, Selection selection, Allocation allocation, Merge merge) {
  return {std::move(host), std::move(score), std::move(selection), std::move(allocation), std::move(merge)};
}

// Every host with every score, and with every selection, allocation and merge that it takes.
std::vector<NamedPolicy> policies() {
  std::vector<NamedPolicy> all;
  Critical adaptive;
  adaptive.alpha.reset();
  KeepKv every_entry, zip, merge_first, periodic, current;
  every_entry.threshold.reset();
  zip.key = MergedKey::zip;
  zip.gqa = MergeGqa::mean;
  merge_first.order = MergeOrder::merge_first;
  periodic.period = kPeriod;
  current.prediction.predict = Prediction::current;
  const std::vector<std::pair<std::string, Host>> hosts{
      {"snapkv", SnapKv{kWindow, 3}}, {"h2o", H2o{kWindow, 2, {}}}, {"tova", Tova{2}}};
  const std::vector<std::pair<std::string, Score>> scores{{"value", ObcacheValue{}},
                                                          {"key", ObcacheKey{{Space::projected}}},
                                                          {"joint", ObcacheJoint{}},
                                                          {"exact", ExactRemoval{}}};
  const std::vector<std::pair<std::string, Selection>> selections{
      {"top-k", TopK{}}, {"critical", Critical{}}, {"adaptive", adaptive}, {"theta-sweep", ThetaSweep{}}};
  const std::vector<std::pair<std::string, Merge>> merges{
      {"keepkv", KeepKv{}},     {"every-entry", every_entry}, {"zip", zip},   {"merge-first", merge_first},
      {"current", current},     {"convex", ConvexMerge{}},    {"d2o", D2o{}}, {"cam", Cam{}},
      {"kvmerger", KvMerger{}}, {"period", periodic}};
  for (const auto& [name, host] : hosts) {
    for (const auto& [score_name, score] : scores) {
      all.push_back({name + "+" + score_name, policy_of(host, score, TopK{}, Uniform{}, NoMerge{})});
    }
    for (const auto& [selection_name, selection] : selections) {
      all.push_back(
          {name + "+" + selection_name, policy_of(host, AttentionScore{}, selection, Uniform{}, NoMerge{})});
    }
    all.push_back({name + "+adakv", policy_of(host, AttentionScore{}, TopK{}, AdaKv{}, NoMerge{})});
    for (const auto& [merge_name, merge] : merges) {
      all.push_back({name + "+" + merge_name, policy_of(host, AttentionScore{}, TopK{}, Uniform{}, merge)});
    }
  }
  for (const auto& [name, host] : std::vector<std::pair<std::string, Host>>{
           {"streaming-llm", StreamingLlm{2}}, {"random", RandomHost{0, 2, 4}}}) {
    all.push_back({name, policy_of(host, AttentionScore{}, TopK{}, Uniform{}, NoMerge{})});
    for (const auto& [merge_name, merge] : merges) {
      if (merge_name == "merge-first" || merge_name == "period") continue;  // need a host that ranks entries
      all.push_back({name + "+" + merge_name, policy_of(host, AttentionScore{}, TopK{}, Uniform{}, merge)});
    }
  }
  return all;
}

void expect_equal(const Matrix& one, const Matrix& other) {
  EXPECT_EQ(one.rows(), other.rows());
  EXPECT_TRUE(std::ranges::equal(one.numbers(), other.numbers()));
}

void expect_equal(const HeadMerge& one, const HeadMerge& other) {
  EXPECT_EQ(one.positions, other.positions);
  EXPECT_EQ(one.votes, other.votes);
  expect_equal(one.keys, other.keys);
  expect_equal(one.values, other.values);
  EXPECT_EQ(one.target_of, other.target_of);
  ASSERT_EQ(one.clusters.size(), other.clusters.size());
  for (size_t i = 0; i < one.clusters.size(); ++i) {
    EXPECT_EQ(one.clusters[i].into, other.clusters[i].into);
    EXPECT_EQ(one.clusters[i].from, other.clusters[i].from);
    expect_equal(one.clusters[i].log_scores, other.clusters[i].log_scores);
  }
}

void expect_equal(const StepRecord& one, const StepRecord& other) {
  expect_equal(one.output, other.output);
  EXPECT_EQ(one.evicted, other.evicted);
  EXPECT_EQ(one.merged_into, other.merged_into);
  EXPECT_EQ(one.rebuilt, other.rebuilt);
  EXPECT_EQ(one.stage_one, other.stage_one);
  ASSERT_EQ(one.merges.size(), other.merges.size());
  for (size_t g = 0; g < one.merges.size(); ++g) expect_equal(one.merges[g], other.merges[g]);
}

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
  twice->steps(decoding.steps());
  compress(*twice, 30);
  compress(*once, 30);
  const std::vector<StepRecord> records = twice->steps(decoding.steps()),
                                expected = once->steps(decoding.steps());
  for (int64_t t = 0; t < kSteps; ++t) expect_equal(records[t], expected[t]);
}

INSTANTIATE_TEST_SUITE_P(All, SessionRequestsOf, testing::ValuesIn(policies()), [](const auto& tested) {
  std::string name;
  for (const char c : tested.param.name) name += c == '+' || c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace kvbound::parity
