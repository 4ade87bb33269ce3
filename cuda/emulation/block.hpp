// The threads of a block, or of a cluster of blocks, on one thread of the operating system: barriers, warp
// steps, waits, shared memory and async copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include <kvbound/cuda/support/build.hpp>
#include <kvbound/reference/core/call_site.hpp>

#include "observer.hpp"
#include "schedule.hpp"
#include "shared_memory_limit.hpp"

namespace kvbound::cuda::emulation {

inline constexpr int kWarpSize = 32;
inline constexpr int kMostThreads = 1024;
inline constexpr int kMostBlocksOfCluster = 8;

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
struct uint3 {
  unsigned x;
  unsigned y;
  unsigned z;
};

struct dim3 {
  unsigned x;
  unsigned y;
  unsigned z;

  constexpr dim3(unsigned x_extent = 1, unsigned y_extent = 1, unsigned z_extent = 1)
      : x(x_extent), y(y_extent), z(z_extent) {}
};

inline uint64_t count(dim3 extent) { return uint64_t{extent.x} * extent.y * extent.z; }

// The running thread's, set whenever another thread continues.
inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
// NOLINTEND(readability-identifier-naming)
/// Whether the running thread has yet to wait for the launch before its kernel's; likewise.
inline constinit thread_local bool has_yet_to_wait = false;

/// A kernel with its arguments.
struct Kernel {
  void (*call)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
  const char* name = "";  ///< of the type Launch<kernel>, mangled
  bool counted = false;   ///< whether it is of the counted build
};

struct Grid {
  Kernel kernel;
  dim3 grid;
  dim3 block;
  int64_t shared_bytes = 0;
  Schedule schedule;
  dim3 cluster = dim3();      ///< blocks; divides the grid
  bool is_dependent = false;  ///< its threads wait for the launch before
};

/// A kernel's fault and its place: `where.file` is null if the place is not known.
struct Fault {
  std::string message;
  CallSite where;
};

/// Runs the blocks of cluster number `cluster` together, counted along x, then y, then z; a block that is in
/// no cluster is one by itself. `watching` may be null.
std::optional<Fault> run_cluster(const Grid& grid, uint64_t cluster, Observer* watching);

/// Runs all blocks, on at most as many threads as OpenMP would use. Throws DeviceError for the first
/// fault in the schedule's order, for a write outside a buffer, and for a launch that no device
/// accepts; `where` is the launch.
void run_grid(const Grid& grid, CallSite where);

/// Whether the caller is a kernel's thread.
bool in_kernel();
/// Ends the kernel from a place that must not be returned to or unwound from: for signal handlers.
[[noreturn]] void fail_for_good(std::string (*problem)());
/// Whether the address lies below the running thread's stack.
bool stack_overflown_at(const void* address);
/// Gives up all of the running thread's frames. Returns its stack's upper end.
std::byte* clear_stack();
/// Where the address lies in the block's shared memory or in device memory, in words.
std::string place_in_memory(const void* address);

// The functions below may be called by a kernel's threads only.

/// Ends the kernel with a fault of this thread.
[[noreturn]] void fail(const std::string& problem, CallSite where);
/// The faults of functions that kernels call everywhere, which are to stay small there.
[[noreturn]] void fail_misaligned(const char* name, CallSite where);
[[noreturn]] void fail_outside_mask(const char* name, int reader, int source, CallSite where);

/// What a thread of a dependent launch calls before it reads or writes device memory.
void await_previous_launch();
/// Fails if it has not yet, and the bytes lie in device memory.
void refuse_early_access(const void* memory, size_t bytes, CallSite where);

/// Waits until all threads of the block have called it from the same place. Returns how many passed true.
int wait_for_block(bool flag, CallSite where);

/// What a thread waits for: a step that lanes of one warp take together, or a state of something
/// that another thread changes.
struct Step {
  const char* name;
  unsigned mask;     ///< the lanes that take part; 0 for a wait of one thread
  const void* kind;  ///< equal for equal operations; of a wait, what is waited for
  CallSite where;
  std::string (*state)(const void* kind) = nullptr;  ///< describes what is waited for
};

/// A thread of the cluster that runs: its block's rank times kMostThreads plus its number in the block.
using ThreadId = int;
ThreadId this_thread();
inline int block_rank(ThreadId id) { return id / kMostThreads; }
std::string name_of(ThreadId id);
/// Suspends the running thread until another thread, or the landing of a bulk copy, resumes it.
void park(const Step& step);
void resume(ThreadId id);
/// The step in words, with its place.
std::string text(const Step& step);
std::string text(CallSite where);
std::string text(uint3 index);
inline bool same_place(CallSite a, CallSite b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

/// Waits for all lanes of the mask. In the last lane that calls it, it returns the `argument` pointers
/// of all lanes; that lane executes the step for all and then calls `finish`. In the other lanes it
/// returns null, after `finish`.
void** gather(const Step& step, void* argument);
void finish(const Step& step);

int lane();
int warp();
/// The blocks of the cluster that runs, at least 1.
int cluster_size();

/// A random or extreme one of `count` things, by the schedule.
int choose(int count);
bool eager_copies();

// What is compiled into kernels belongs to their build.
inline namespace KVBOUND_CUDA_BUILD {

/// One lane executes `operation(argument_of)` for all lanes of the mask; argument_of(l) is lane l's argument.
/// `observe` tells the observer, if there is one, of the instruction: observe(observer, argument_of).
template <class Argument, class Operation, class Observe>
void together(const char* name, unsigned mask, Argument& argument, CallSite where, const Operation& operation,
              const Observe& observe) {
  static constexpr char kKind = 0;
  const Step step{name, mask, &kKind, where};
  if (void** const arguments = gather(step, &argument)) {
    const auto of = [arguments](int l) -> Argument& { return *static_cast<Argument*>(arguments[l]); };
    if (observer != nullptr) observe(*observer, of);
    {
      const Unobserved unobserved;
      operation(of);
    }
    finish(step);
  }
}
/// The same of an instruction that the observer knows by its kind.
template <class Argument, class Operation>
void together(Instruction what, const char* name, unsigned mask, Argument& argument, CallSite where,
              const Operation& operation) {
  together(name, mask, argument, where, operation,
           [what](Observer& watching, const auto&) { watching.warp(what, 0); });
}

}  // namespace KVBOUND_CUDA_BUILD

/// Tells places of the program apart, for an observer.
inline uintptr_t site_of(CallSite where) {
  constexpr int kFreeBits = 48;  // above those of an address
  return reinterpret_cast<uintptr_t>(where.file) ^ static_cast<uintptr_t>(where.line) << kFreeBits;
}

/// Tells the observer, if there is one, of the running thread's part of an instruction.
[[gnu::noinline]] void observe_lane(Instruction what);

/// The cluster's barrier: a thread arrives, and later waits until all threads of the cluster have arrived.
void arrive_at_cluster(CallSite where);
void wait_for_cluster(CallSite where);

class SharedArena;
struct AsyncProxy;
SharedArena& shared_arena();             // of the running block
SharedArena& shared_arena_of(int rank);  // of a block of the cluster
AsyncProxy& async_proxy();               // of the cluster

/// Array `number` of the block's shared memory, which on a GPU begins at byte `offset`. All threads have to
/// request the same arrays.
void* shared_array(int number, int64_t offset, int64_t bytes, int64_t alignment, CallSite where);
/// Fails unless the bytes lie within one array of shared memory, on a multiple of the alignment.
void require_shared(const void* memory, int64_t bytes, int64_t alignment, const char* name, CallSite where);

/// The address of a byte of shared memory on a GPU. Fails if the byte lies in no array.
uint32_t shared_address(const void* memory, CallSite where);

/// Fails unless the address is a multiple of the alignment.
inline void require_aligned(const void* address, int64_t alignment, const char* name, CallSite where) {
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment) != 0)
    fail_misaligned(name, where);
}

/// Copies the first `bytes` of 16 and sets the others to zero, at once or at the wait.
void copy_async(void* shared, const void* global, int bytes, CallSite where);
void commit_copies();
/// Returns when all but the latest `in_flight` groups of this thread have landed.
void wait_for_copies(int in_flight);

}  // namespace kvbound::cuda::emulation
