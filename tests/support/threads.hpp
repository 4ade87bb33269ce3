// Tests that compare numbers of threads.
#pragma once

#include <omp.h>

#include <kvbound/reference/core/parallel.hpp>

namespace kvbound::test {

/// What body() returns with this many threads, which every loop takes, of however little work it is.
template <class Body>
auto with_threads(int threads, const Body& body) {
  struct Restored {
    int threads = omp_get_max_threads();
    double least = reference::least_for_threads;
    ~Restored() {
      omp_set_num_threads(threads);
      reference::least_for_threads = least;
    }
  } const before;
  omp_set_num_threads(threads);
  reference::least_for_threads = 0;
  return body();
}

}  // namespace kvbound::test
