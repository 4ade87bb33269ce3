// What a kernel did, counted: instructions of warps, memory traffic, and the longest chain of waits.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <kvbound/cuda/emulation/block.hpp>
#include <kvbound/cuda/emulation/observer.hpp>

namespace kvbound::cuda::counting {

using emulation::Instruction;

/// A sector of device memory: what the L2 cache delivers at least.
inline constexpr uintptr_t kSectorBytes = 32;

/// The widths of an access in bytes: 1, 2, 4, 8, 16.
inline constexpr int kWidths = 5;

/// Accesses by width, an instruction of a warp each. One counts once for device memory and once for shared
/// memory if its lanes access both.
using ByWidth = std::array<double, kWidths>;

/// Numbers of a launch, or of a part of it. They are real because those of a sampled launch are extrapolated.
struct KernelCounts {
  /// Instructions of warps, by Instruction. Loads and stores stand here, too.
  std::array<double, emulation::kInstructions> instructions{};
  double mma_flop = 0;            ///< of mma.sync
  double warpgroup_mma_flop = 0;  ///< of wgmma

  ByWidth device_loads{}, device_stores{}, shared_loads{}, shared_stores{};
  double device_requests = 0;  ///< of warps to device memory: loads, stores, cp.async
  double useful_bytes = 0;     ///< different bytes of each request, added up
  double sectors = 0;          ///< of 32 bytes, that requests and bulk copies touch
  double bulk_bytes = 0;       ///< of device memory, by bulk copies

  /// Passes through shared memory, of up to 128 bytes: those that requests take, and those that they would
  /// take if no two lanes' words of a pass lay in one bank.
  double wavefronts = 0;
  double least_wavefronts = 0;

  double of(Instruction what) const { return instructions[static_cast<size_t>(what)]; }
  KernelCounts& operator+=(const KernelCounts& more);
  KernelCounts& operator*=(double factor);
  friend bool operator==(const KernelCounts&, const KernelCounts&) = default;
};

/// What a warp waits for, one after the other: of each kind the largest number over all warps.
struct WaitChain {
  int64_t device_rounds = 0;  ///< stretches between two steps of the whole warp that load from device memory
  int64_t shared_rounds = 0;  ///< likewise from shared memory, and not from device memory
  int64_t exchanges = 0;      ///< shuffles and votes
  int64_t barriers = 0;       ///< of the block
  int64_t cluster_barriers = 0;
  int64_t atomic_rounds = 0;  ///< stretches with atomics

  void raise_to(const WaitChain& other);
};

/// Device memory that a launch touches, each sector once.
struct TouchedBytes {
  double read = 0;
  double written = 0;
};

struct LaunchCounts {
  std::string kernel;  ///< as in cuda/resources.txt: "compact_kernel", "norms_mma_kernel<8, Bfloat16>"
  emulation::dim3 grid, block, cluster;
  int64_t shared_bytes = 0;
  uint64_t counted_clusters = 0;  ///< fewer than there are if the launch was sampled
  KernelCounts counts;            ///< of all blocks, extrapolated from those that were counted
  WaitChain chain;
  TouchedBytes touched;

  uint64_t blocks() const { return count(grid); }
  bool sampled() const { return counted_clusters * count(cluster) < blocks(); }
};

}  // namespace kvbound::cuda::counting
