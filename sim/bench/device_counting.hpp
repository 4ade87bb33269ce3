// The work of device operations, counted instead of timed.
#pragma once

#include <functional>

#include <kvbound/sim/roofline/gpu.hpp>
#include <kvbound/sim/roofline/operation_time.hpp>

namespace kvbound::sim {

/// Lets the counted device have as many multiprocessors as the GPU while it lives, so
/// that launches are the GPU's.
class ActingAs {
 public:
  /// Throws NoDevice in a program without kernels that count what they do (KVBOUND_COUNTED).
  explicit ActingAs(const Gpu& gpu);
  ~ActingAs();
  ActingAs(const ActingAs&) = delete;
  ActingAs& operator=(const ActingAs&) = delete;
};

/// What `work` does on the counted device; launches too long for that are sampled.
CountedWork counted_work(const std::function<void()>& work);
/// Runs `work` with long launches sampled, so that it only prepares what is counted later.
inline void run_sampled(const std::function<void()>& work) { static_cast<void>(counted_work(work)); }

}  // namespace kvbound::sim
