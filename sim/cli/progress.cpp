#include "progress.hpp"

#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace kvbound::sim {

using namespace std::chrono_literals;

Progress::Progress(std::string task, bool wanted, Elsewhere elsewhere, std::chrono::milliseconds period)
    : task_(std::move(task)) {
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  if (!wanted || (!on_terminal && elsewhere == Elsewhere::nothing)) return;
  try {
    thread_ = std::thread([this, on_terminal, period] {
      if (on_terminal) {
        show_on_terminal();
      } else {
        show_lines(period);
      }
    });
  } catch (const std::system_error&) {
    // There are no more threads: nothing is shown.
  }
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  finished_changed_.notify_one();
  thread_.join();
}

void Progress::update(int64_t done, int64_t whole, std::string detail) {
  if (whole <= 0) return;
  const std::lock_guard lock(mutex_);
  share_ = static_cast<double>(done) / static_cast<double>(whole);
  detail_ = std::move(detail);
}

std::string Progress::line(std::chrono::steady_clock::time_point start) const {
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::string text = fmt::format("{}: {:.0f} % after {:.0f} s", task_, 100 * share_, elapsed);
  if (share_ > 0) text += fmt::format(", about {:.0f} s left", elapsed * (1 / share_ - 1));
  if (!detail_.empty()) text += ", " + detail_;
  return text;
}

void Progress::show_on_terminal() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const auto finished = [this] { return finished_; };
  if (finished_changed_.wait_for(lock, 2s, finished)) return;
  do {
    std::fputs(("\r\x1b[K" + line(start)).c_str(), stderr);
    std::fflush(stderr);
  } while (!finished_changed_.wait_for(lock, 500ms, finished));
  std::fputs("\r\x1b[K", stderr);
}

void Progress::show_lines(std::chrono::milliseconds period) {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!finished_changed_.wait_for(lock, period, [this] { return finished_; }))
    std::fputs((line(start) + "\n").c_str(), stderr);
}

}  // namespace kvbound::sim
