// Which call precedes which.
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/flashinfer/recorded_session.hpp>
#include <kvbound/traces/generate.hpp>

#include "support/message_of.hpp"
#include "support/recorded_calls.hpp"

namespace kvbound::traces::recorded_session_test {
namespace {

class RecordedSessionTest : public testing::Test {
 protected:
  void write(int time, const std::string& method, int object = 9) const {
    test::RecordedParts parts;
    parts.function = "A." + method;
    parts.timestamp = fmt::format("20260108_000000_{:03}", time);
    parts.more = fmt::format("\"self_id\": {}", object);
    test::write_call(dumps_, parts);
  }
  // The number of the call of plan that precedes a call; 0 if there is none.
  int64_t plan_before(int64_t number) const {
    const RecordedSession session(dumps_.path());
    const RecordedCall* plan = session.last_before(session.call(number), "plan");
    for (int64_t one = 1; plan && one <= session.size(); ++one) try {
        if (&session.call(one) == plan) return one;
      } catch (const TraceError&) {  // it cannot be read
      }
    return 0;
  }

  test::TemporaryFolder dumps_;
};

TEST_F(RecordedSessionTest, NumbersCallsByTheirTime) {
  write(2, "run");
  write(1, "plan");
  const RecordedSession session(dumps_.path());
  EXPECT_EQ(session.call(1).function(), "A.plan");
  EXPECT_EQ(session.call(2).function(), "A.run");
  for (const int64_t number : {0, 3}) {
    EXPECT_NE(test::message_of<InvalidOption>([&] { session.call(number); }).find("has calls 1 to 2"),
              std::string::npos);
  }
}

TEST_F(RecordedSessionTest, TheLastPlanOfTheObjectPrecedesARun) {
  write(1, "plan");
  write(2, "plan");
  write(3, "plan", 8);
  write(4, "run");
  write(5, "plan");
  EXPECT_EQ(plan_before(4), 2);
}

TEST_F(RecordedSessionTest, APlanInTheSameMillisecondPrecedesTheRunIfItIsTheOnlyOne) {
  write(2, "plan");
  write(2, "run");
  EXPECT_EQ(plan_before(2), 1);
  write(1, "plan");
  EXPECT_NE(test::message_of<TraceError>([&] { plan_before(3); }).find("unknown which of them came first"),
            std::string::npos);
}

TEST_F(RecordedSessionTest, AConstructorEndsTheObjectBeforeIt) {
  write(1, "plan");
  write(2, "__init__");
  write(3, "run");
  EXPECT_EQ(plan_before(3), 0);
}

TEST_F(RecordedSessionTest, RefusesACallThatCannotBeReadOnlyWhenItIsNeeded) {
  write(1, "plan");
  write(2, "plan");
  write(3, "other");
  write(4, "run");
  const auto spoil = [&](int time, const std::string& method) {
    dumps_.write(fmt::format("20260108_000000_{:03}_pid1_A.{}_call0001/metadata.jsonl", time, method), "{");
  };
  spoil(1, "plan");
  spoil(3, "other");
  EXPECT_NE(test::message_of<TraceError>([&] { plan_before(4); }).find("_001_pid1_A.plan"), std::string::npos)
      << "it may be the last plan of this object";
  std::filesystem::remove_all(dumps_.path("20260108_000000_001_pid1_A.plan_call0001"));
  EXPECT_EQ(plan_before(3), 1);
  const RecordedSession session(dumps_.path());
  EXPECT_NE(test::message_of<TraceError>([&] { session.call(2); }).find("is not valid JSON"),
            std::string::npos);
}

TEST_F(RecordedSessionTest, NeedsCalls) {
  EXPECT_NE(test::message_of<TraceError>([&] { RecordedSession(dumps_.path()); }).find("holds no calls"),
            std::string::npos);
}

}  // namespace
}  // namespace kvbound::traces::recorded_session_test
