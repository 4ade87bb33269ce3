// Whoever watches kernels run, to count what they do. Only kernels of the counted build (support/build.hpp)
// say what they do; those of the emulated build are not slowed down by it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace kvbound::cuda::emulation {

class SharedArena;
struct Grid;

/// What a warp executes, as far as the emulation sees it: not integer and fp32 arithmetic.
enum class Instruction {
  load,              ///< from device or shared memory
  store,             ///< likewise
  matrix_load,       ///< ldmatrix
  async_copy,        ///< cp.async
  bulk_copy,         ///< cp.async.bulk and TMA
  mma,               ///< mma.sync
  warpgroup_mma,     ///< a warp's quarter of a wgmma
  fma,               ///< explicit fmaf
  special_function,  ///< exp, log, sqrt and their like
  shuffle,           ///< and votes
  warp_barrier,      ///< __syncwarp
  block_barrier,     ///< __syncthreads
  mbarrier,          ///< operations on an mbarrier
  cluster_barrier,   ///< arrivals at a cluster's barrier
  atomic             ///< in device or shared memory
};
inline constexpr int kInstructions = 15;

/// Watches the blocks that one thread of the operating system runs, one cluster at a time.
class Observer {
 public:
  virtual ~Observer() = default;

  /// The blocks of a cluster begin; blocks[rank] is the shared memory of one.
  virtual void begin_cluster(std::span<SharedArena* const> blocks) = 0;
  /// All lanes of a warp have reached a step that they take together, or a barrier of their block.
  virtual void meet(int rank, int warp, bool at_barrier) = 0;
  /// All threads of the cluster have returned.
  virtual void end_cluster() = 0;

  // Called while a kernel's thread runs.

  /// One thread's part of an instruction; `site` identifies the instruction in the program.
  virtual void lane(Instruction what, uintptr_t site) = 0;
  /// One thread's part of an access to memory.
  virtual void access(Instruction what, uintptr_t address, int bytes, uintptr_t site) = 0;
  /// An instruction of the thread's warp, which one lane executes for all. flop: of the whole warp.
  virtual void warp(Instruction what, double flop) = 0;
  /// ldmatrix with these 32 rows of 16 bytes, of the thread's warp.
  virtual void matrix_load(std::span<const uintptr_t> rows) = 0;
  /// An asynchronous unit reads or writes bytes of shared memory: a bulk copy, wgmma.
  virtual void shared_bytes(Instruction what, int64_t bytes) = 0;
  /// A bulk copy reads successive bytes of device memory.
  virtual void device_bytes(uintptr_t address, int64_t bytes) = 0;
};

/// Watches one launch.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;

  /// An observer for the calling thread of the operating system, which ends before this object does.
  virtual std::unique_ptr<Observer> of_this_thread() = 0;
  /// How many clusters are run until `suffices` is asked again.
  virtual uint64_t batch() const = 0;
  /// Called behind every batch and behind the last cluster: whether the clusters that have been run are
  /// enough to know the others by, which are then not run.
  virtual bool suffices(uint64_t run, uint64_t all) = 0;
};

/// Makes an observer of a launch; null: nobody watches.
using Observe = std::unique_ptr<LaunchObserver> (*)(const Grid&);
/// Sets it for launches of the counted build, in all threads.
void watch_launches(Observe observe);

#ifdef KVBOUND_CUDA_COUNTED
constexpr bool kCounted = true;
#else
constexpr bool kCounted = false;
#endif

/// The running kernel thread's; null if nobody watches it.
inline constinit thread_local Observer* observer = nullptr;

/// What the emulation does for a kernel is not counted as the kernel's own.
class Unobserved {
 public:
  Unobserved() : before_(observer) { observer = nullptr; }
  ~Unobserved() { observer = before_; }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;

 private:
  Observer* before_;
};

}  // namespace kvbound::cuda::emulation
