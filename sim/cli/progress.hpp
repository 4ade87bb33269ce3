// Progress of long-running work on standard error: on a terminal one line, after two seconds; elsewhere,
// where it is wanted, a line every ten seconds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace kvbound::sim {

/// Shows the current task and its progress until destroyed. A separate thread updates the line, so that the
/// elapsed time advances even while a single work item takes long.
class Progress {
 public:
  /// Where standard error is not a terminal: nothing, or a line from time to time.
  enum class Elsewhere { nothing, lines };
  static constexpr std::chrono::milliseconds kPeriod{10'000};  ///< of such lines

  /// Shows nothing if `wanted` is false (--quiet).
  Progress(std::string task, bool wanted, Elsewhere elsewhere = Elsewhere::nothing,
           std::chrono::milliseconds period = kPeriod);
  /// Erases the line on a terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the number of work items done, and their total. `detail` is shown behind them, as a rate.
  void update(int64_t done, int64_t whole, std::string detail = {});

 private:
  void show_on_terminal();
  void show_lines(std::chrono::milliseconds period);
  // What is shown, by the time since the start.
  std::string line(std::chrono::steady_clock::time_point start) const;

  std::string task_;
  std::mutex mutex_;
  std::condition_variable finished_changed_;
  bool finished_ = false;
  double share_ = 0;
  std::string detail_;
  std::thread thread_;
};

}  // namespace kvbound::sim
