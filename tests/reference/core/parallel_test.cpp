#include <atomic>
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
  void SetUp() override { omp_set_num_threads(GetParam()); }
  void TearDown() override { omp_set_num_threads(before_); }

 private:
  int before_ = omp_get_max_threads();
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

INSTANTIATE_TEST_SUITE_P(Threads, ParallelFor, testing::Values(1, 2, 5));

}  // namespace
}  // namespace kvbound::reference::parallel_test
