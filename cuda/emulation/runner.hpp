// Runs blocks on the calling thread of the operating system, which has one Runner: one block, or the blocks
// of one cluster, at a time.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "async_proxy.hpp"
#include "bad_access.hpp"
#include "block.hpp"
#include "fiber.hpp"
#include "random.hpp"
#include "resident_block.hpp"

namespace kvbound::cuda::emulation {

inline unsigned bit_of(ThreadId id) { return 1U << static_cast<unsigned>(id) % kWarpSize; }
inline int number_in_block(ThreadId id) { return id % kMostThreads; }
inline size_t warp_number(ThreadId id) { return static_cast<size_t>(number_in_block(id)) / kWarpSize; }

class Runner {
 public:
  /// The calling thread's, made by the first call.
  static Runner& here();
  /// The same, if there is one; else null.
  static Runner* running() { return of_thread; }

  Runner() : begun_for_(0, 0, 0) {}

  std::optional<Fault> run(const Grid& grid, uint64_t cluster, Observer* watching);

  void record(const std::string& problem, CallSite where);
  [[noreturn]] void fail(const std::string& problem, CallSite where);
  [[noreturn]] void leave() { Fiber::leave(*fiber_, main_); }
  int wait_for_block(bool flag, CallSite where);
  void arrive_at_cluster(CallSite where);
  void wait_for_cluster(CallSite where);
  inline void** gather(const Step& step, void* argument);
  inline void finish(const Step& step);
  void park(const Step& step);
  void resume(ThreadId id);
  int choose(int count);
  void await_previous_launch() { me().has_yet_to_wait = has_yet_to_wait = false; }

  bool in_kernel() const { return current_ >= 0; }
  ThreadId current() const { return current_; }
  AsyncCopies& copies() { return thread(current_).copies; }
  AsyncProxy& async_proxy() { return proxy_; }
  bool eager_copies() const { return grid_->schedule.eager_copies; }
  SharedArena& shared() { return block_->shared; }
  SharedArena& shared_of(int rank) { return blocks_[static_cast<size_t>(rank)]->shared; }
  const Fiber& fiber() const { return *fiber_; }
  int cluster_size() const { return resident_; }
  /// Where the address lies in the shared memory of any block of the cluster.
  std::optional<std::string> place_in_shared(const void* address) const;
  std::string name(ThreadId id) const;

 private:
  static void run_threads();
  void prepare(uint64_t cluster);
  void end_block(ResidentBlock& block);
  void name_threads();
  void drop_everything();

  ResidentBlock& block_of(ThreadId id) { return *blocks_[static_cast<size_t>(block_rank(id))]; }
  const ResidentBlock& block_of(ThreadId id) const { return *blocks_[static_cast<size_t>(block_rank(id))]; }
  Thread& thread(ThreadId id) { return block_of(id).threads[static_cast<size_t>(number_in_block(id))]; }
  const Thread& thread(ThreadId id) const {
    return block_of(id).threads[static_cast<size_t>(number_in_block(id))];
  }
  Warp& warp_of(ThreadId id) { return block_of(id).warps[warp_number(id)]; }
  const Warp& warp_of(ThreadId id) const { return block_of(id).warps[warp_number(id)]; }
  // The running thread's: without a look at which block that is, because they are needed at every wait.
  Thread& me() { return block_->threads[static_cast<size_t>(number_in_block(current_))]; }
  Warp& my_warp() { return block_->warps[warp_number(current_)]; }
  int of_this_warp(int lane) const { return current_ - current_ % kWarpSize + lane; }

  // Called at every wait, and only in runner.cpp.
  inline int pick(unsigned set);
  inline bool moves();
  inline ThreadId next();
  inline ThreadId next_or_landed();
  inline bool set_current(ThreadId id);
  inline void update_runnable(ResidentBlock& block, ThreadId id);
  inline void go_on();
  bool begin_another();
  Fiber& idle_fiber();
  inline void refuse_step_of_others(const Step& step);
  void refuse_to_return();
  void refuse_to_leave_others();
  bool waits(ThreadId id) const {
    return ((warp_of(id).at_barrier | warp_of(id).at_step | warp_of(id).parked) & bit_of(id)) != 0;
  }
  /// Calls visit(id) for the threads of all resident blocks.
  template <class Visit>
  void each_thread(const Visit& visit) const {
    for (int rank = 0; rank < resident_; ++rank) {
      for (int number = 0; number < count_; ++number) visit(rank * kMostThreads + number);
    }
  }
  std::string thread_name(ThreadId id) const;
  std::string first_gone() const;
  std::string first_at_barrier() const;
  std::string all_waits() const;
  CallSite first_wait() const;

  /// Threads of the cluster at its barrier.
  struct ClusterBarrier {
    int arrived = 0;
    int phase = 0;
    std::vector<ThreadId> waiting;
  };

  static constinit thread_local inline Runner* of_thread = nullptr;

  SignalGuard guard_;
  std::array<uint3, kMostThreads> names_;
  dim3 begun_for_;  // the block shape that names_ belong to

  Fiber main_;
  Fiber* fiber_ = &main_;  // the running one
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;

  std::vector<std::unique_ptr<ResidentBlock>> blocks_;
  ResidentBlock* block_ = nullptr;  // the running one
  ClusterBarrier cluster_barrier_;
  AsyncProxy proxy_;

  const Grid* grid_ = nullptr;
  int resident_ = 0;    // blocks that run together: the first of blocks_
  int count_ = 0;       // threads of a block
  int gone_ = 0;        // threads of all blocks that have returned
  unsigned ready_ = 0;  // ranks of blocks with runnable threads
  ThreadId current_ = -1;
  Random random_{0};
  std::optional<Fault> fault_;
};

}  // namespace kvbound::cuda::emulation
