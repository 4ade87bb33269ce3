// A roofline model of a launch: how long it takes on a GPU if nothing but its slowest resource matters.
//
//     t = launch + max over resources r of t_r
//
//     memory             bytes of device memory touched, each once, at a copy's bandwidth
//     L2 cache           32 bytes of each sector requested, at the L2 cache's bandwidth, and at
//                        that of one multiprocessor
//     shared memory      wavefronts, and requests to device memory, which pass through the same unit
//     issue              instructions of warps: those counted, times what nvcc's main
//                        loops have for one counted
//     integer units      likewise, of integer instructions and conversions
//     fp64 units         likewise, of double precision
//     tensor cores       FLOP of mma.sync at its share of the peak, FLOP of wgmma at cuBLAS' rate
//     special functions  exp, log, sqrt
//     shuffles           and votes
//     latency            a warp's instructions, each of which takes some clocks, and what warps wait for, one
//                        after the other, the most of each kind over all warps, for each wave of blocks; not
//                        copies that run by the side
//
// Resources of a multiprocessor are those of the one that has the most blocks: with B blocks on M
// multiprocessors its share of the work is ceil(B / M) / B. A wave is as many blocks as are resident at a
// time, as threads, registers and shared memory allow.
#pragma once

#include <array>
#include <string_view>

#include <kvbound/cuda/counting/kernel_counts.hpp>

#include "gpu.hpp"

namespace kvbound::sim {

enum class Resource {
  launch,
  memory,
  l2_cache,
  shared_memory,
  issue,
  integer_units,
  fp64_units,
  tensor_cores,
  special_functions,
  shuffles,
  latency
};
inline constexpr size_t kResourceCount = 11;
std::string_view name(Resource resource);

struct LaunchTime {
  double seconds = 0;
  Resource limiter = Resource::launch;
  std::array<double, kResourceCount> of{};  ///< seconds, by Resource
  int registers = 0;                        ///< of a thread; 0: not known
  int resident_blocks = 0;                  ///< of a multiprocessor
  double occupancy = 0;                     ///< share of its 64 warps
  double waves = 0;
  double instructions = 0;  ///< of warps, estimated
};

/// The first kernel of a graph takes longer to launch.
LaunchTime launch_time(const cuda::counting::LaunchCounts& launch, const Gpu& gpu, bool first);

}  // namespace kvbound::sim
