#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/parallel_times.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::parallel_times_test {
namespace {

using testing::StartsWith;
using Parts = std::vector<ParallelTimes::Part>;

TEST(Makespan, IsThatOfThreadsThatTakeTheNextPieceWhenTheyAreFree) {
  const std::vector<double> pieces{3, 1, 1, 2, 4};
  EXPECT_EQ(makespan(pieces, 0, 1), 11);
  EXPECT_EQ(makespan(pieces, 0, 2), 7) << "3 and 4; 1, 1, 2";
  EXPECT_EQ(makespan(pieces, 0, 5), 4);
  EXPECT_EQ(makespan(pieces, 0, 64), 4);
  EXPECT_EQ(makespan(pieces, 10, 2), 17) << "each thread makes its state first";
  EXPECT_EQ(makespan({}, 10, 2), 0) << "no thread gets work";
}

void sleep(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(ParallelTimes, AddUpWhatIsInLoopsAndWhatIsNot) {
  ParallelTimes times({1, 2});
  const auto where = std::source_location::current();
  sleep(20);
  for (int repeat = 0; repeat < 2; ++repeat) {
    times.run(
        4, [] { return 0; }, [](int, int64_t i) { sleep(i == 0 ? 20 : 0); }, where);
  }
  sleep(10);
  const Parts parts = times.parts();
  ASSERT_EQ(parts.size(), 2);
  EXPECT_THAT(parts[0].place, StartsWith("parallel_times_test.cpp:"));
  EXPECT_EQ(parts[0].loops, 2);
  EXPECT_EQ(parts[0].pieces, 8);
  EXPECT_GE(parts[0].serial, 0.020);
  EXPECT_GE(parts[0].parallel, 0.040);
  EXPECT_NEAR(parts[0].on[0], parts[0].parallel, 1e-9);
  EXPECT_GE(parts[0].on[1], 0.040) << "one piece takes nearly all of a loop's time";
  EXPECT_LE(parts[0].on[1], parts[0].on[0] + 1e-9);
  EXPECT_EQ(parts[1].place, "end");
  EXPECT_GE(parts[1].serial, 0.010);
}

TEST(ParallelTimes, AreOfTheThreadThatMadeThem) {
  EXPECT_EQ(ParallelTimes::of_this_thread(), nullptr);
  {
    ParallelTimes times({1});
    EXPECT_EQ(ParallelTimes::of_this_thread(), &times);
    std::thread([] { EXPECT_EQ(ParallelTimes::of_this_thread(), nullptr); }).join();
    times.run(
        1, [] { return 0; },
        [](int, int64_t) {
          EXPECT_EQ(ParallelTimes::of_this_thread(), nullptr) << "a loop in a piece is part of it";
        },
        std::source_location::current());
    {
      const ParallelTimes inner({2});
      EXPECT_EQ(ParallelTimes::of_this_thread(), &inner);
    }
    EXPECT_THROW(times.run(
                     1, [] { return 0; }, [](int, int64_t) { throw std::invalid_argument("piece"); },
                     std::source_location::current()),
                 std::invalid_argument);
    EXPECT_EQ(ParallelTimes::of_this_thread(), &times) << "after an exception, too";
  }
  EXPECT_EQ(ParallelTimes::of_this_thread(), nullptr);
}

TEST(ParallelTimes, OfOperationsNameTheirLoopsAndLeaveTheirResults) {
  const test::RandomLayer layer({4, 2, 8, 16}, 40, 8, 0, 1);
  const Matrix before = window_attention(layer.view(), 8);
  ParallelTimes times({1, 64});
  const Matrix after = window_attention(layer.view(), 8);
  EXPECT_TRUE(std::ranges::equal(before.numbers(), after.numbers()));
  const Parts parts = times.parts();
  const auto loop = std::ranges::find_if(
      parts, [](const auto& part) { return part.place.starts_with("window_logits.cpp:"); });
  ASSERT_NE(loop, parts.end());
  EXPECT_EQ(loop->loops, 1);
  EXPECT_EQ(loop->pieces, 2) << "one for each KV head";
}

}  // namespace
}  // namespace kvbound::reference::parallel_times_test
