// Parallelism over independent pieces of work (heads, fixed blocks), never through a reduction, so that
// results are bit-identical for any number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>

#include "call_site.hpp"
#include "parallel_times.hpp"

#ifndef _OPENMP
#error "parallel loops need OpenMP: two definitions of them in one program would be undefined behaviour"
#endif

namespace kvbound::reference {

/// Seconds of work, all threads together, from which on a loop is divided among threads: waking them takes as
/// long as they would save of less. (reference/DECISIONS.md) Tests of threads set it to 0.
inline std::atomic<double> least_for_threads = 75e-6;

/// Calls piece(state, 0), ..., piece(state, count - 1), in any order and on any thread. Each thread that gets
/// work has a separate state, made by make_state(), such as working memory. When all calls are done, the
/// exception of the first piece that threw one, by its number, is thrown again. A loop that will take less
/// than least_for_threads, by the time of a piece in its latest run, or half of that in the run before, and
/// so on, stays on the caller's thread.
///
/// where  the loop's name in ParallelTimes
template <class MakeState, class Piece>
void parallel_for(int64_t count, const MakeState& make_state, const Piece& piece,
                  CallSite where = CallSite::current()) {
  if (ParallelTimes* const times = ParallelTimes::of_this_thread()) {
    return times->run(count, make_state, piece, where);
  }
  std::exception_ptr failure;
  int64_t failed = count;
  static std::atomic<double> seconds_of_piece = 1e-3;  // in this loop's latest runs; enough before the first
  double seconds = 0;                                  // of all threads together
#pragma omp parallel if (count > 1 && static_cast<double>(count) * seconds_of_piece >= least_for_threads) reduction(+ : seconds)
  {
    const auto start = std::chrono::steady_clock::now();
    std::optional<decltype(make_state())> state;
#pragma omp for schedule(dynamic) nowait
    for (int64_t i = 0; i < count; ++i) {
      try {
        if (!state) state.emplace(make_state());
        piece(*state, i);
      } catch (...) {
#pragma omp critical(kvbound_parallel_for)
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
      }
    }
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  if (count > 1) seconds_of_piece = std::max(seconds / static_cast<double>(count), seconds_of_piece / 2);
  if (failure) std::rethrow_exception(failure);
}

/// The same without a state: piece(0), ..., piece(count - 1).
template <class Piece>
void parallel_for(int64_t count, const Piece& piece, CallSite where = CallSite::current()) {
  struct Nothing {};
  parallel_for(
      count, [] { return Nothing(); }, [&](Nothing, int64_t i) { piece(i); }, where);
}

}  // namespace kvbound::reference
