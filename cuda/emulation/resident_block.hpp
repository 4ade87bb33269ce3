// A block that runs: its threads, what they wait for, and its shared memory.
#pragma once

#include <array>

#include "async_copies.hpp"
#include "block.hpp"
#include "fiber.hpp"
#include "shared_memory.hpp"

namespace kvbound::cuda::emulation {

inline constexpr int kMostWarps = kMostThreads / kWarpSize;

struct Thread {
  Fiber* fiber = nullptr;      // on which the thread waits
  const Step* step = nullptr;  // for which the thread waits; lies on its stack until then
  AsyncCopies copies;
  int cluster_arrivals = 0;  // at the cluster's barrier
  int cluster_waits = 0;
  bool has_yet_to_wait = false;  // for the launch before
};

/// Sets of lanes.
struct Warp {
  unsigned runnable = 0;  // may continue or begin
  unsigned at_barrier = 0;
  unsigned at_step = 0;
  unsigned parked = 0;  // wait until another thread resumes them
  unsigned gone = 0;    // have returned, or do not exist
  unsigned begun = 0;
};

struct ResidentBlock {
  uint3 index{};
  SharedArena shared;
  std::array<Thread, kMostThreads> threads;
  std::array<Warp, kMostWarps> warps;
  std::array<void*, kMostThreads> arguments;
  bool begun = false;
  int gone = 0;           // threads that have returned
  int at_barrier = 0;     // threads that wait at the barrier
  int flags = 0;          // threads at the barrier that passed true
  int last_flags = 0;     // flags of the last barrier
  CallSite barrier;       // the barrier at which threads wait
  unsigned runnable = 0;  // warps with runnable lanes

  /// As before its first thread begins.
  void restart(uint3 place, int threads_count, int64_t shared_bytes, bool is_dependent);
};

}  // namespace kvbound::cuda::emulation
