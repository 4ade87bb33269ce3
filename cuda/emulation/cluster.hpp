// The other blocks of a cluster, seen from a kernel's thread.
#pragma once

#include <string>

#include "block.hpp"
#include "shared_memory.hpp"

namespace kvbound::cuda::emulation {

/// The same place in the shared memory of the block with this rank.
inline void* map_shared(void* shared, int rank, CallSite where) {
  if (rank < 0 || rank >= cluster_size()) {
    fail("maps shared memory to rank " + std::to_string(rank) + " of a cluster of " +
             std::to_string(cluster_size()),
         where);
  }
  std::string problem;
  void* const there = shared_arena().same_place_in(shared_arena_of(rank), shared, problem);
  if (there == nullptr) fail(problem, where);
  return there;
}

}  // namespace kvbound::cuda::emulation
