// Progress of long work: one line on standard error, on a terminal only, and only after two seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvbound::sim {

class Progress {
 public:
  /// enabled = false (--quiet), or a standard error that is no terminal: says nothing.
  Progress(std::string task, bool enabled);
  /// Wipes the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, int64_t whole);

 private:
  using Clock = std::chrono::steady_clock;

  std::string task_;
  bool enabled_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace kvbound::sim
