#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/call_site.hpp>
#include <kvbound/reference/core/parallel.hpp>
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
  const auto where = CallSite::current();
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
    {
      const ParallelTimes inner({2});
      EXPECT_EQ(ParallelTimes::of_this_thread(), &inner);
    }
  }
  EXPECT_EQ(ParallelTimes::of_this_thread(), nullptr);
}

TEST(ParallelTimes, OfALoopInAPieceArePartOfThePiece) {
  const ParallelTimes times({2});
  parallel_for(2, [](int64_t) { parallel_for(2, [](int64_t) { sleep(5); }); });
  const Parts parts = times.parts();
  ASSERT_EQ(parts.size(), 2) << "the outer loop, and the end";
  EXPECT_EQ(parts[0].loops, 1);
  EXPECT_EQ(parts[0].pieces, 2);
  EXPECT_GE(parts[0].parallel, 0.020);
  EXPECT_GE(parts[0].on[0], 0.010);
}

TEST(ParallelTimes, OfALoopOfOnePieceAreThoseOfTheLoopsInIt) {
  const ParallelTimes times({2});
  parallel_for(1, [](int64_t) {
    sleep(5);
    parallel_for(2, [](int64_t) { sleep(5); });
  });
  const Parts parts = times.parts();
  ASSERT_EQ(parts.size(), 2) << "the inner loop, and the end";
  EXPECT_EQ(parts[0].pieces, 2);
  EXPECT_GE(parts[0].serial, 0.005);
}

TEST(ParallelTimes, OfAStateAreTheLoopsNotTheNextOnes) {
  struct State {
    State() { sleep(5); }
    ~State() { sleep(20); }
  };
  const ParallelTimes times({2});
  const auto loop = [] {
    parallel_for(
        2, [] { return State(); }, [](const State&, int64_t) {});
  };
  loop();
  loop();
  parallel_for(
      0, [] { return State(); }, [](const State&, int64_t) {});
  const Parts parts = times.parts();
  ASSERT_EQ(parts.size(), 2);
  EXPECT_EQ(parts[0].loops, 2) << "a loop of no pieces is none, and makes no state";
  EXPECT_GE(parts[0].parallel, 0.050);
  EXPECT_GE(parts[0].on[0], 0.050) << "both threads make a state";
  EXPECT_LT(parts[0].serial, parts[0].parallel - 0.030);
  EXPECT_LT(parts[1].serial, 0.020);
}

TEST(ParallelTimes, OfAFailedLoopAreNotCounted) {
  const ParallelTimes times({2});
  std::vector<int64_t> done;
  const auto loop = [&] {
    parallel_for(4, [&](int64_t i) {
      done.push_back(i);
      if (i == 1 || i == 2) throw std::invalid_argument(std::to_string(i));
    });
  };
  EXPECT_THAT(loop, testing::ThrowsMessage<std::invalid_argument>("1"));
  EXPECT_EQ(done, (std::vector<int64_t>{0, 1, 2, 3})) << "as without times, all pieces run";
  EXPECT_EQ(times.parts().size(), 1);
  parallel_for(2, [](int64_t) {});
  EXPECT_EQ(times.parts().size(), 2) << "and the next loop is no part of it";
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
