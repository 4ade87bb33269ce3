// Parallelism over independent pieces (heads, fixed blocks), never through a reduction: that keeps results
// bit-identical for any number of threads.
#pragma once

#include <cstdint>
#include <exception>

namespace kvbound::reference {

/// Calls piece(0), ..., piece(count - 1), in any order and on any thread. The first exception is rethrown
/// when all are done.
template <class Piece>
void parallel_for(int64_t count, const Piece& piece) {
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < count; ++i) {
    try {
      piece(i);
    } catch (...) {
#pragma omp critical(kvbound_parallel_for)
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace kvbound::reference
