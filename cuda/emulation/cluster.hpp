// The other blocks of a cluster, seen from a kernel's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "async_proxy.hpp"
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

/// st.async of 4 bytes to the block with this rank: in flight as bulk copies are, and NaN until it lands.
inline void store_async(int* to, int rank, int number, uint64_t* barrier, CallSite where) {
  constexpr int64_t kBytes = sizeof(number);
  constexpr const char* kName = "st.async";
  require_shared(to, kBytes, kBytes, kName, where);
  require_shared(barrier, 8, 8, kName, where);
  auto* const there = static_cast<std::byte*>(map_shared(to, rank, where));
  auto* const arrived = static_cast<uint64_t*>(map_shared(barrier, rank, where));
  const auto write = [there, number] { write_shared(there, &number, kBytes); };
  async_proxy().loads.issue(kName, {there, kBytes, arrived, write, where}, rank);
  if (observer != nullptr) observer->lane(Instruction::mbarrier, site_of(where));
}

}  // namespace kvbound::cuda::emulation
