#include "progress.hpp"

#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace kvbound::sim {

using namespace std::chrono_literals;

Progress::Progress(std::string task, bool wanted) : task_(std::move(task)) {
  if (!wanted || isatty(STDERR_FILENO) != 1) return;
  try {
    thread_ = std::thread([this] { show(); });
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

void Progress::show() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const auto finished = [this] { return finished_; };
  if (finished_changed_.wait_for(lock, 2s, finished)) return;
  do {
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::string line = fmt::format("{}: {:.0f} % after {:.0f} s", task_, 100 * share_, elapsed);
    if (share_ > 0) line += fmt::format(", about {:.0f} s left", elapsed * (1 / share_ - 1));
    if (!detail_.empty()) line += ", " + detail_;
    std::fputs(("\r\x1b[K" + line).c_str(), stderr);
    std::fflush(stderr);
  } while (!finished_changed_.wait_for(lock, 500ms, finished));
  std::fputs("\r\x1b[K", stderr);
}

}  // namespace kvbound::sim
