// Sessions whose caches lie in pages: the bits of those in one piece.
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/session/session.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/session.hpp>

#include "decoding_cases.hpp"
#include "support/message_of.hpp"

namespace kvbound::parity {
namespace {

constexpr int64_t kLongTokens = 200, kBudget = 100;

std::unique_ptr<Session> session_of(Dtype storage, int64_t page_size) {
  return cuda::KVBOUND_CUDA_BUILD::make_session(storage, nullptr, nullptr, page_size);
}

std::vector<NamedPolicy> policies_without_merges() {
  std::vector<NamedPolicy> all = policies();
  std::erase_if(all,
                [](const NamedPolicy& one) { return !std::holds_alternative<NoMerge>(one.policy.merge); });
  return all;
}

// So many steps of a prompt, again and again the same.
std::vector<StepRecord> decoded(Session& session, const Decoding& decoding, const Policy& policy,
                                int64_t steps) {
  session.compress(decoding.layer(), policy, std::vector<int64_t>{kBudget, kBudget / 2});
  std::vector<StepView> views;
  for (int64_t t = 0; t < steps; ++t) views.push_back(decoding.step(t % kSteps));
  return session.steps(views);
}

void expect_same(const std::vector<StepRecord>& actual, const std::vector<StepRecord>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t t = 0; t < expected.size(); ++t) {
    SCOPED_TRACE("step " + std::to_string(t));
    expect_equal(actual[t], expected[t]);
  }
}

class PagedSessions : public DeviceTest {};

class PagedSessionsOf : public DeviceTest, public testing::WithParamInterface<NamedPolicy> {};

TEST_P(PagedSessionsOf, GiveTheBitsOfOnePiece) {
  const Decoding decoding{kLongTokens};
  expect_same(decoded(*session_of(Dtype::bf16, 64), decoding, GetParam().policy, 3),
              decoded(*session_of(Dtype::bf16, 0), decoding, GetParam().policy, 3));
}

INSTANTIATE_TEST_SUITE_P(All, PagedSessionsOf, testing::ValuesIn(policies_without_merges()), name_of);

// More steps than a cache that keeps all has room for; compressed anew it has its first pages again.
TEST_F(PagedSessions, GrowByPages) {
  const Policy policy = policies_named({"snapkv+top-k"}).front().policy;
  const Decoding decoding{kLongTokens};
  for (const Dtype storage : {Dtype::f32, Dtype::f16}) {
    const std::unique_ptr<Session> paged = session_of(storage, 128), plain = session_of(storage, 0);
    for (const int64_t steps : {300, 3})
      expect_same(decoded(*paged, decoding, policy, steps), decoded(*plain, decoding, policy, steps));
  }
}

// Requests of different lengths, whose caches have different numbers of pages.
TEST_F(PagedSessions, TakeStepsTogether) {
  for (const NamedPolicy& one : policies_named({"snapkv+top-k", "h2o+critical", "tova+joint"})) {
    SCOPED_TRACE(one.name);
    std::vector<Decoding> requests;
    for (int64_t r = 0; r < 3; ++r) requests.push_back({kLongTokens + 30 * r, static_cast<uint64_t>(r)});
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<SessionSteps> all;
    for (size_t r = 0; r < requests.size(); ++r) {
      sessions.push_back(session_of(Dtype::bf16, 64));
      const auto budget = static_cast<int64_t>(40 + 70 * r);
      sessions.back()->compress(requests[r].layer(), one.policy, std::vector<int64_t>{budget, budget});
      all.push_back({sessions.back().get(), requests[r].steps()});
      all.back().views.resize(6);
    }
    sessions.front()->take_together(all);
    for (size_t r = 0; r < requests.size(); ++r) {
      const std::unique_ptr<Session> alone = session_of(Dtype::bf16, 0);
      const auto budget = static_cast<int64_t>(40 + 70 * r);
      alone->compress(requests[r].layer(), one.policy, std::vector<int64_t>{budget, budget});
      expect_same(all[r].records, alone->steps(all[r].views));
    }
  }
}

TEST_F(PagedSessions, GiveTheSameUnderEverySchedule) {
  const Policy policy = policies_named({"h2o+critical"}).front().policy;
  const Decoding decoding{kLongTokens};
  in_every_schedule([&] {
    std::vector<double> outputs;
    for (const StepRecord& record : decoded(*session_of(Dtype::bf16, 64), decoding, policy, 3))
      outputs.insert(outputs.end(), record.output.numbers().begin(), record.output.numbers().end());
    return outputs;
  });
}

TEST_F(PagedSessions, RefuseMergesAndOtherSizes) {
  const Decoding decoding;
  const auto refused = [&](const std::string& policy, int64_t page_size) {
    const std::unique_ptr<Session> session = session_of(Dtype::f32, page_size);
    return test::message_of<InvalidPolicy>([&] {
      session->compress(decoding.layer(), policies_named({policy}).front().policy,
                        std::vector<int64_t>{20, 20});
    });
  };
  EXPECT_EQ(refused("h2o+keepkv", 64), "a cache whose entries merge is not stored in pages");
  for (const int64_t size : {63, 32, 96, 131072, -1})
    EXPECT_EQ(refused("h2o+top-k", size),
              "a page has " + std::to_string(size) + " rows; a power of two from 64 to 65536 is possible");
}

}  // namespace
}  // namespace kvbound::parity
