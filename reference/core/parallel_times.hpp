// What parallel loops take, piece by piece, and what they would take on more threads.
#pragma once

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "call_site.hpp"

namespace kvbound::reference {

/// The time in which threads finish pieces of work if each takes the next piece when it is free.
///
/// pieces  [count]: seconds, in the order in which they are taken
/// state   seconds that each thread that gets work spends besides its pieces
/// threads > 0
inline double makespan(std::span<const double> pieces, double state, int64_t threads) {
  assert(threads > 0);
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

/// While it lives, parallel loops of the thread that made it run on that thread alone,
/// and their pieces are timed.
///
/// Loops in a piece are part of it, as they are where threads run the pieces. A loop of a single piece is no
/// loop: parallel_for starts no threads for it, and loops in it are parallel.
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

  /// threads  numbers of threads for which times are wanted, > 0
  explicit ParallelTimes(std::vector<int64_t> threads)
      : threads_(std::move(threads)), before_(std::exchange(current(), this)) {}
  ~ParallelTimes() { current() = before_; }
  ParallelTimes(const ParallelTimes&) = delete;
  ParallelTimes& operator=(const ParallelTimes&) = delete;

  /// The latest that this thread made and that lives; null: none.
  static ParallelTimes* of_this_thread() { return current(); }

  /// Does what parallel_for does, in order. A loop that ends with an exception is not counted.
  template <class MakeState, class Piece>
  void run(int64_t count, const MakeState& make_state, const Piece& piece, CallSite where) {
    if (in_piece_ || count <= 1) return in_order(count, make_state, piece, [] {});
    const double serial = lap();
    std::vector<double> seconds;
    {
      const Inside inside(in_piece_);
      in_order(count, make_state, piece, [&] { seconds.push_back(lap()); });
    }
    const double state = seconds.front() + lap();  // making and freeing it
    add(where, serial, state, std::span(seconds).subspan(1));
  }

  /// Places in the order in which they were first seen; the last, "end", has what came after the last loop.
  std::vector<Part> parts() const {
    std::vector<Part> all = parts_;
    all.push_back({"end", 0, 0, seconds(since_), 0, std::vector<double>(threads_.size())});
    return all;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Calls `then` when the state is made and after every piece.
  template <class MakeState, class Piece, class Then>
  static void in_order(int64_t count, const MakeState& make_state, const Piece& piece, const Then& then) {
    if (count == 0) return;
    std::exception_ptr failure;
    auto state = make_state();
    then();
    for (int64_t i = 0; i < count; ++i) {
      try {
        piece(state, i);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
      then();
    }
    if (failure) std::rethrow_exception(failure);
  }

  struct Inside {
    explicit Inside(bool& flag) : flag_(flag) { flag_ = true; }
    ~Inside() { flag_ = false; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    bool& flag_;
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

  void add(CallSite where, double serial, double state, std::span<const double> pieces) {
    std::string_view file = where.file;
    file.remove_prefix(file.rfind('/') + 1);  // npos + 1 = 0
    const std::string place = std::string(file) + ":" + std::to_string(where.line);
    auto part = std::ranges::find(parts_, place, &Part::place);
    if (part == parts_.end()) {
      parts_.push_back({place, 0, 0, 0, 0, std::vector<double>(threads_.size())});
      part = std::prev(parts_.end());
    }
    ++part->loops;
    part->pieces += std::ssize(pieces);
    part->serial += serial;
    part->parallel += state;
    for (const double seconds : pieces) part->parallel += seconds;
    for (size_t i = 0; i < threads_.size(); ++i) part->on[i] += makespan(pieces, state, threads_[i]);
    lap();  // what this took is in no part
  }

  std::vector<int64_t> threads_;
  ParallelTimes* before_;
  bool in_piece_ = false;
  Clock::time_point since_ = Clock::now();
  std::vector<Part> parts_;
};

}  // namespace kvbound::reference
