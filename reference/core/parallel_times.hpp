// What parallel loops take, piece by piece, and what they would take on more threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvbound::reference {

/// The shortest time in which threads finish pieces of work if each takes the next piece when it is free.
///
/// pieces  [count]: seconds, in the order in which they are taken
/// state   seconds that each thread that gets work spends before its first piece
inline double makespan(std::span<const double> pieces, double state, int64_t threads) {
  const int64_t busy = std::min(threads, std::ssize(pieces));
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int64_t i = 0; i < busy; ++i) free.push(state);
  double last = 0;
  for (const double seconds : pieces) {
    const double end = free.top() + seconds;
    free.pop();
    free.push(end);
    last = std::max(last, end);
  }
  return last;
}

/// While it lives, parallel loops of the thread that made it run on that thread alone, and their pieces are timed.
class ParallelTimes {
 public:
  /// The loops of one place in the source.
  struct Part {
    std::string place;  ///< "critical_kv.cpp:61"
    int64_t loops = 0;
    int64_t pieces = 0;
    double serial = 0;       ///< seconds outside loops, since the loop before or the beginning
    double parallel = 0;     ///< seconds of all pieces
    std::vector<double> on;  ///< [threads]: seconds of the loops on that many threads
  };

  /// threads  numbers of threads for which times are wanted
  explicit ParallelTimes(std::vector<int64_t> threads)
      : threads_(std::move(threads)), before_(std::exchange(current(), this)) {}
  ~ParallelTimes() { current() = before_; }
  ParallelTimes(const ParallelTimes&) = delete;
  ParallelTimes& operator=(const ParallelTimes&) = delete;

  /// The one to which a loop of this thread tells its times; null: none, or the loop is part of another loop's piece.
  static ParallelTimes* of_this_thread() { return current(); }

  /// Runs one loop; the parameters are those of parallel_for.
  template <class MakeState, class Piece>
  void run(int64_t count, const MakeState& make_state, const Piece& piece,
           const std::source_location& where) {
    const double serial = lap();
    const Inside inside(*this);
    auto state = make_state();
    const double making = lap();
    std::vector<double> seconds;
    for (int64_t i = 0; i < count; ++i) {
      piece(state, i);
      seconds.push_back(lap());
    }
    add(where, serial, making, seconds);
  }

  /// Places in the order in which they were first seen; the last, "end", has what came after the last loop.
  std::vector<Part> parts() {
    std::vector<Part> all = parts_;
    all.push_back({"end", 0, 0, seconds(since_), 0, std::vector<double>(threads_.size())});
    return all;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Loops in a piece are part of it.
  struct Inside {
    explicit Inside(ParallelTimes& times) : times_(times) { current() = nullptr; }
    ~Inside() { current() = &times_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ParallelTimes& times_;
  };

  static ParallelTimes*& current() {
    thread_local ParallelTimes* times = nullptr;
    return times;
  }
  static double seconds(Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  }
  double lap() {
    const Clock::time_point before = std::exchange(since_, Clock::now());
    return std::chrono::duration<double>(since_ - before).count();
  }

  void add(const std::source_location& where, double serial, double making, std::span<const double> pieces) {
    std::string_view file = where.file_name();
    file.remove_prefix(file.rfind('/') + 1);  // npos + 1 = 0
    const std::string place = std::string(file) + ":" + std::to_string(where.line());
    auto part = std::ranges::find(parts_, place, &Part::place);
    if (part == parts_.end()) {
      parts_.push_back({place, 0, 0, 0, 0, std::vector<double>(threads_.size())});
      part = std::prev(parts_.end());
    }
    ++part->loops;
    part->pieces += std::ssize(pieces);
    part->serial += serial;
    for (const double seconds : pieces) part->parallel += seconds;
    if (!pieces.empty()) part->parallel += making;
    for (size_t i = 0; i < threads_.size(); ++i) part->on[i] += makespan(pieces, making, threads_[i]);
    lap();
  }

  std::vector<int64_t> threads_;
  ParallelTimes* before_;
  Clock::time_point since_ = Clock::now();
  std::vector<Part> parts_;
};

}  // namespace kvbound::reference
