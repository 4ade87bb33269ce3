#include "schedule.hpp"

#include <mutex>
#include <utility>

namespace kvbound::cuda::emulation {
namespace {

std::mutex mutex;
Schedule current_schedule;

Schedule put(Schedule schedule) {
  const std::lock_guard lock(mutex);
  return std::exchange(current_schedule, schedule);
}

}  // namespace

Schedule schedule() {
  const std::lock_guard lock(mutex);
  return current_schedule;
}

ScopedSchedule::ScopedSchedule(Schedule schedule) : before_(put(schedule)) {}
ScopedSchedule::~ScopedSchedule() { put(before_); }

}  // namespace kvbound::cuda::emulation
