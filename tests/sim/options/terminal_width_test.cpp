#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <cstdlib>

#include <kvbound/sim/options/terminal_width.hpp>

namespace kvbound::sim::terminal_width_test {
namespace {

using Width = std::optional<int64_t>;

// A terminal of so many columns, and the environment variable COLUMNS as it is to be.
class TerminalWidth : public testing::Test {
 protected:
  TerminalWidth() : terminal_(posix_openpt(O_RDWR | O_NOCTTY)) { unsetenv("COLUMNS"); }
  ~TerminalWidth() override {
    close(terminal_);
    unsetenv("COLUMNS");
  }
  int terminal(unsigned short columns) const {
    winsize size{};
    size.ws_col = columns;
    EXPECT_EQ(ioctl(terminal_, TIOCSWINSZ, &size), 0);
    return terminal_;
  }

 private:
  int terminal_;
};

TEST_F(TerminalWidth, IsThatOfTheTerminal) {
  EXPECT_EQ(terminal_width(terminal(132)), Width(132));
  EXPECT_EQ(terminal_width(terminal(12)), Width(40));
}

TEST_F(TerminalWidth, IsWhatColumnsSays) {
  setenv("COLUMNS", "200", 1);
  EXPECT_EQ(terminal_width(terminal(132)), Width(200));
  EXPECT_EQ(terminal_width(-1), Width(200));
  setenv("COLUMNS", "7", 1);
  EXPECT_EQ(terminal_width(-1), Width(40));
  setenv("COLUMNS", "4294967296", 1);
  EXPECT_EQ(terminal_width(-1), Width(1000));
}

TEST_F(TerminalWidth, IsThatOfTheTerminalWhereColumnsIsNoNumber) {
  for (const char* said : {"", "wide", "0", "-5", "80 ", "99999999999999999999"}) {
    setenv("COLUMNS", said, 1);
    EXPECT_EQ(terminal_width(terminal(132)), Width(132)) << said;
  }
}

TEST_F(TerminalWidth, IsUnknownOfAFileAndOfATerminalThatDoesNotKnowIt) {
  const int file = open("/dev/null", O_WRONLY);
  EXPECT_EQ(terminal_width(file), std::nullopt);
  EXPECT_EQ(terminal_width(terminal(0)), std::nullopt);
  close(file);
}

}  // namespace
}  // namespace kvbound::sim::terminal_width_test
