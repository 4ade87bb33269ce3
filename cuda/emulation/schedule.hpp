// In which order the emulation runs what a GPU would run at once.
#pragma once

#include <cstdint>

namespace kvbound::cuda::emulation {

/// A correct kernel gives the same bits under every schedule. A thread runs until it has to wait; then the next one.
struct Schedule {
  /// 0: blocks, warps and lanes in ascending order. 1: all in descending order, so that of two threads between two
  /// barriers each is first under one of 0 and 1. Others: a random order, drawn anew at every wait.
  uint64_t seed = 0;
  /// When an async copy lands: false, at the wait for it, which shows a missing wait; true, when it is issued, which
  /// shows a buffer that is still being read.
  bool eager_copies = false;
};

/// The schedule of launches from now on, in all threads.
Schedule schedule();

/// Sets the schedule for its own life, then the one before again.
class ScopedSchedule {
 public:
  explicit ScopedSchedule(Schedule schedule);
  ~ScopedSchedule();
  ScopedSchedule(const ScopedSchedule&) = delete;
  ScopedSchedule& operator=(const ScopedSchedule&) = delete;

 private:
  Schedule before_;
};

}  // namespace kvbound::cuda::emulation
