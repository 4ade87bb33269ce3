// Progress of long work: one line on standard error, on a terminal only, and only after two seconds.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace kvbound::sim {

/// Shows what is being done, and how far it is, until it is destroyed. A thread of its own does the showing,
/// so that the line lives even while one piece of work takes long.
class Progress {
 public:
  /// wanted = false (--quiet), or a standard error that is no terminal: says nothing.
  Progress(std::string task, bool wanted);
  /// Wipes the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Pieces done of the pieces in all.
  void update(int64_t done, int64_t whole);

 private:
  void show();

  std::string task_;
  std::mutex mutex_;
  std::condition_variable finished_changed_;
  bool finished_ = false;
  double share_ = 0;
  std::thread thread_;
};

}  // namespace kvbound::sim
