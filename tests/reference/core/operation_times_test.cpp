#include <limits>
#include <stdexcept>
#include <string_view>

#include <gtest/gtest.h>

#include <kvbound/reference/core/operation_times.hpp>

namespace kvbound::operation_times_test {
namespace {

TEST(Timed, AddsUpByOperationAndReturnsWhatTheWorkReturns) {
  OperationTimes times;
  int value = 1;
  EXPECT_EQ(&timed(&times, "refer", [&]() -> int& { return value; }), &value);
  timed(&times, "set", [&] { value = 2; });
  EXPECT_EQ(timed(&times, "refer", [&]() -> int& { return value; }), 2);
  ASSERT_EQ(times.entries().size(), 2U);
  EXPECT_EQ(times.entries()[0].operation, "refer");
  EXPECT_EQ(times.entries()[0].calls, 2);
  EXPECT_EQ(times.entries()[1].calls, 1);
  EXPECT_EQ(timed(nullptr, "not timed", [] { return 3; }), 3);
}

TEST(Timed, WorkThatThrowsIsNotTimed) {
  OperationTimes times;
  EXPECT_THROW(timed(&times, "fail", [] { throw std::runtime_error("failed"); }), std::runtime_error);
  EXPECT_TRUE(times.entries().empty());
}

TEST(Timed, AnEntryThatCannotBeMadeIsAnException) {
  OperationTimes times;
  const std::string_view longer_than_a_string("x", std::numeric_limits<size_t>::max());
  EXPECT_THROW(timed(&times, longer_than_a_string, [] { return 1; }), std::length_error);
}

}  // namespace
}  // namespace kvbound::operation_times_test
