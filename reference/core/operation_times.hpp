// Wall times of operations, added up by operation name.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvbound {

/// Seconds per operation, in the order in which operations were first seen.
class OperationTimes {
 public:
  struct Entry {
    std::string operation;
    int64_t calls = 0;
    double seconds = 0;
  };

  void add(std::string_view operation, double seconds, int64_t calls = 1) {
    for (Entry& entry : entries_) {
      if (entry.operation != operation) continue;
      entry.calls += calls;
      entry.seconds += seconds;
      return;
    }
    entries_.push_back({std::string(operation), calls, seconds});
  }
  void add(const OperationTimes& others) {
    for (const Entry& other : others.entries_) add(other.operation, other.seconds, other.calls);
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

/// Runs the work, adds its wall time to `times` unless that is null, and returns the work's result.
template <class Work>
decltype(auto) timed(OperationTimes* times, std::string_view operation, const Work& work) {
  struct Clock {
    ~Clock() {
      const auto elapsed = std::chrono::steady_clock::now() - start;
      if (times) times->add(operation, std::chrono::duration<double>(elapsed).count());
    }
    OperationTimes* times;
    std::string_view operation;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  } const clock{times, operation};
  return work();
}

}  // namespace kvbound
