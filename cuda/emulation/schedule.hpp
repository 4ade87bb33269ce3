// The order in which the emulation runs threads and blocks, which a GPU would run concurrently.
#pragma once

#include <cstdint>

namespace kvbound::cuda::emulation {

/// A correct kernel gives the same bits under every schedule. A thread runs until it has to
/// wait; then the next one runs.
struct Schedule {
  /// 0: blocks, warps and lanes in ascending order. 1: all in descending order, so that between two barriers
  /// each of two threads runs first under 0 or under 1. Others: a random order, drawn anew at every wait.
  uint64_t seed = 0;
  /// When an async copy is done: false, at the wait for it, which reveals a missing wait; true, when it is
  /// issued, which reveals a buffer that other threads still read.
  bool eager_copies = false;
};

/// The schedule of launches from now on, in all threads.
Schedule schedule();

/// Sets the schedule for this object's lifetime, then restores the previous one.
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
