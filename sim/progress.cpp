#include "progress.hpp"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include <fmt/format.h>

namespace kvbound::sim {

Progress::Progress(std::string task, bool enabled)
    : task_(std::move(task)), enabled_(enabled && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(int64_t done, int64_t whole) {
  using namespace std::chrono_literals;
  const Clock::time_point now = Clock::now();
  if (!enabled_ || now - start_ < 2s || now - last_ < 100ms || done <= 0 || whole <= 0) return;
  last_ = now;
  shown_ = true;
  const double share = static_cast<double>(done) / static_cast<double>(whole);
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  fmt::print(stderr, "\r\x1b[K{}: {:.0f} %, about {:.0f} s left", task_, 100 * share,
             elapsed * (1 / share - 1));
  std::fflush(stderr);
}

}  // namespace kvbound::sim
