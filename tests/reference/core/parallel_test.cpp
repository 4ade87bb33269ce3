#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <kvbound/reference/core/parallel.hpp>

namespace kvbound::reference::parallel_test {
namespace {

using testing::Each;
using testing::ThrowsMessage;

class ParallelFor : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    omp_set_num_threads(GetParam());
    least_for_threads = 0;
  }
  void TearDown() override {
    omp_set_num_threads(threads_);
    least_for_threads = least_;
  }

 private:
  int threads_ = omp_get_max_threads();
  double least_ = least_for_threads;
};

TEST_P(ParallelFor, RunsEveryPieceOnce) {
  for (const int64_t count : {0, 1, 2, 1000}) {
    std::vector<int> runs(count);
    parallel_for(count, [&](int64_t i) { ++runs[i]; });
    EXPECT_THAT(runs, Each(1));
  }
}

TEST_P(ParallelFor, MakesAStateForEachThreadThatGetsWork) {
  std::atomic<int> made = 0, pieces = 0;
  struct State {
    int pieces = 0;
    std::atomic<int>* all;
    ~State() { *all += pieces; }
  };
  const auto make_state = [&] {
    ++made;
    return State{0, &pieces};
  };
  const auto piece = [](State& state, int64_t) { ++state.pieces; };
  parallel_for(0, make_state, piece);
  EXPECT_EQ(made, 0);
  parallel_for(100, make_state, piece);
  EXPECT_GE(made, 1);
  EXPECT_LE(made, GetParam());
  EXPECT_EQ(pieces, 100);
}

// Piece 0 fails last, after all others have failed.
TEST_P(ParallelFor, ThrowsTheExceptionOfTheFirstPieceThatFailedByItsNumber) {
  std::atomic<int> failed = 0;
  const int64_t count = GetParam();  // a piece for each thread, which wait for each other
  const auto loop = [&] {
    parallel_for(count, [&](int64_t i) {
      while (i == 0 && failed < count - 1 && omp_get_num_threads() > 1) std::this_thread::yield();
      ++failed;
      throw std::invalid_argument(std::to_string(i));
    });
  };
  for (int repeat = 0; repeat < 20; ++repeat) {
    failed = 0;
    EXPECT_THAT(loop, ThrowsMessage<std::invalid_argument>("0"));
    EXPECT_EQ(failed, count) << "all pieces run before it throws";
  }
}

TEST_P(ParallelFor, KeepsTheFirstOfManyFailures) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_THAT(
        [] {
          parallel_for(64, [](int64_t i) {
            if (i >= 5) throw std::invalid_argument(std::to_string(i));
          });
        },
        ThrowsMessage<std::invalid_argument>("5"));
  }
}

// The number of threads that a loop of 8 pieces of this kind takes in its next run.
template <class Piece>
int threads_of(const Piece& piece) {
  std::atomic<int> threads = 0;
  parallel_for(8, [&](int64_t) {
    threads = omp_get_num_threads();
    piece();
  });
  return threads;
}

class ParallelForOfLittleWork : public testing::Test {
 protected:
  void SetUp() override { omp_set_num_threads(4); }
  void TearDown() override { omp_set_num_threads(threads_); }

 private:
  int threads_ = omp_get_max_threads();
};

TEST_F(ParallelForOfLittleWork, StaysOnTheCallersThread) {
  const auto nothing = [] {};
  const auto a_millisecond = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  EXPECT_EQ(threads_of(nothing), 4) << "nothing is known of it yet";
  int runs = 0;  // the thread may have to wait for a processor in some of them
  while (threads_of(nothing) > 1 && runs < 10'000) ++runs;
  EXPECT_LT(runs, 10'000);
  for (int run = 0; run < 3; ++run) EXPECT_EQ(threads_of(a_millisecond), 4) << run;
}

// One small run must not put the next large one on one thread.
TEST_F(ParallelForOfLittleWork, IsExpectedOnlyAfterSeveralRunsOfIt) {
  std::chrono::milliseconds work(8);
  const auto loop = [&] { return threads_of([&] { std::this_thread::sleep_for(work); }); };
  loop();
  work = std::chrono::milliseconds(0);
  for (int run = 0; run < 5; ++run) EXPECT_EQ(loop(), 4) << run;
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelFor, testing::Values(1, 2, 5));

}  // namespace
}  // namespace kvbound::reference::parallel_test
