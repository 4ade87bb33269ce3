// Counts one launch.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/cuda/emulation/observer.hpp>
#include <kvbound/cuda/emulation/shared_memory.hpp>

#include "touched_sectors.hpp"
#include "warp_requests.hpp"

namespace kvbound::cuda::counting {

class LaunchCounter : public emulation::LaunchObserver {
 public:
  /// Appends the counts to `launches`, which outlives it.
  LaunchCounter(const emulation::Grid& grid, double most_instructions, std::vector<LaunchCounts>& launches);

  std::unique_ptr<emulation::Observer> of_this_thread() override;
  uint64_t batch() const override;
  bool suffices(uint64_t run, uint64_t all) override;

  TouchedSectors& touched() { return touched_; }
  /// Adds what one thread of the operating system has counted.
  void add(const KernelCounts& counts, const WaitChain& chain);

 private:
  void finish(uint64_t run, uint64_t all);

  double most_instructions_;
  bool samples_ = true;  // as far as the least sample tells
  std::vector<LaunchCounts>& launches_;
  LaunchCounts counted_;
  TouchedSectors touched_;
  std::vector<TouchedSectors::OfBuffer> touched_by_half_;  // of a sample
  std::mutex mutex_;
};

/// Counts the blocks that one thread of the operating system runs.
class ThreadCounter : public emulation::Observer {
 public:
  explicit ThreadCounter(LaunchCounter& launch) : launch_(launch) {}
  ~ThreadCounter() override { launch_.add(counts_, longest_); }

  void begin_cluster(std::span<emulation::SharedArena* const> blocks) override;
  void meet(int rank, int warp, bool at_barrier) override;
  void end_cluster() override;
  void lane(Instruction what, uintptr_t site) override;
  void access(Instruction what, uintptr_t address, int bytes, uintptr_t site) override;
  void warp(Instruction what, double flop) override;
  void matrix_load(std::span<const uintptr_t> rows) override;
  void shared_bytes(Instruction what, int64_t bytes) override;
  void device_bytes(uintptr_t address, int64_t bytes) override;

 private:
  struct Warp {
    WarpRequests requests;
    WaitChain chain;
  };

  Warp& warp_of(emulation::ThreadId id) { return warps_[static_cast<size_t>(id / emulation::kWarpSize)]; }
  /// The address on a GPU; nullopt if it lies in no block's shared memory.
  std::optional<uintptr_t> shared_address(uintptr_t address) const;

  LaunchCounter& launch_;
  std::span<emulation::SharedArena* const> blocks_;
  std::vector<Warp> warps_;  // of a cluster
  KernelCounts counts_;
  WaitChain longest_;
};

}  // namespace kvbound::cuda::counting
