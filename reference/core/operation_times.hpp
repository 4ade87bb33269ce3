// Wall times of operations, added up by operation name.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
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

/// Runs the work, adds its wall time to `times` unless that is null or the work throws; returns its result.
template <class Work>
decltype(auto) timed(OperationTimes* times, std::string_view operation, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  const auto add = [&] {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (times) times->add(operation, elapsed.count());
  };
  if constexpr (std::is_void_v<decltype(work())>) {
    work();
    add();
  } else {
    decltype(auto) result = work();
    add();
    return result;
  }
}

}  // namespace kvbound
