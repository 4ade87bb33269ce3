// Progress of long-running work: one line on standard error, only on a terminal and only after two seconds.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace kvbound::sim {

/// Shows the current task and its progress until destroyed. A separate thread updates the line, so that the elapsed
/// time advances even while a single work item takes long.
class Progress {
 public:
  /// Shows nothing if `wanted` is false (--quiet) or standard error is not a terminal.
  Progress(std::string task, bool wanted);
  /// Erases the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the number of work items done, and their total. `detail` is shown behind them, as a rate.
  void update(int64_t done, int64_t whole, std::string detail = {});

 private:
  void show();

  std::string task_;
  std::mutex mutex_;
  std::condition_variable finished_changed_;
  bool finished_ = false;
  double share_ = 0;
  std::string detail_;
  std::thread thread_;
};

}  // namespace kvbound::sim
