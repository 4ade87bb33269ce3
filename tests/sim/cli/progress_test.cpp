#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <chrono>
#include <string>
#include <thread>

#include <kvbound/sim/cli/progress.hpp>

namespace kvbound::sim::progress_test {
namespace {

using namespace std::chrono_literals;
using testing::MatchesRegex;

// What is shown within that time; tests' standard error is no terminal once it is captured.
std::string shown(bool wanted, Progress::Elsewhere elsewhere, std::chrono::milliseconds time = 100ms) {
  testing::internal::CaptureStderr();
  {
    Progress progress("recording", wanted, elsewhere, 20ms);
    progress.update(1, 4, "7 tokens/s");
    std::this_thread::sleep_for(time);
  }
  return testing::internal::GetCapturedStderr();
}

TEST(Progress, IsLinesWithoutATerminalWhereTheyAreWanted) {
  std::string lines;  // on a busy machine the thread that writes them may have to wait
  for (const auto time : {100ms, 1000ms, 20000ms}) {
    if (lines.empty()) lines = shown(true, Progress::Elsewhere::lines, time);
  }
  EXPECT_THAT(lines, MatchesRegex("(recording: 25 % after [0-9]+ s, about [0-9]+ s left, 7 tokens/s\n)+"));
}

TEST(Progress, IsNothingWithoutATerminalElsewhere) {
  EXPECT_EQ(shown(true, Progress::Elsewhere::nothing), "");
  EXPECT_EQ(shown(false, Progress::Elsewhere::lines), "") << "--quiet";
}

}  // namespace
}  // namespace kvbound::sim::progress_test
