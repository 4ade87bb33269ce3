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

// What is shown within a tenth of a second; tests' standard error is no terminal once it is captured.
std::string shown(bool wanted, Progress::Elsewhere elsewhere) {
  testing::internal::CaptureStderr();
  {
    Progress progress("recording", wanted, elsewhere, 20ms);
    progress.update(1, 4, "7 tokens/s");
    std::this_thread::sleep_for(100ms);
  }
  return testing::internal::GetCapturedStderr();
}

TEST(Progress, IsLinesWithoutATerminalWhereTheyAreWanted) {
  EXPECT_THAT(shown(true, Progress::Elsewhere::lines),
              MatchesRegex("(recording: 25 % after 0 s, about [0-9]+ s left, 7 tokens/s\n)+"));
}

TEST(Progress, IsNothingWithoutATerminalElsewhere) {
  EXPECT_EQ(shown(true, Progress::Elsewhere::nothing), "");
  EXPECT_EQ(shown(false, Progress::Elsewhere::lines), "") << "--quiet";
}

}  // namespace
}  // namespace kvbound::sim::progress_test
