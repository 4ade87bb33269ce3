#include "schedule.hpp"

#include <mutex>

namespace kvbound::cuda::emulation {
namespace {

std::mutex mutex;
Schedule current;

Schedule exchange(Schedule schedule) {
  const std::lock_guard lock(mutex);
  const Schedule before = current;
  current = schedule;
  return before;
}

}  // namespace

Schedule schedule() {
  const std::lock_guard lock(mutex);
  return current;
}

ScopedSchedule::ScopedSchedule(Schedule schedule) : before_(exchange(schedule)) {}
ScopedSchedule::~ScopedSchedule() { exchange(before_); }

}  // namespace kvbound::cuda::emulation
