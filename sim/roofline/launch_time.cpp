#include "launch_time.hpp"

#include <algorithm>
#include <cmath>

#include "kernel_build.hpp"

namespace kvbound::sim {
namespace {

using cuda::counting::Instruction;
using cuda::counting::LaunchCounts;

constexpr double kSectorBytes = 32, kWavefrontBytes = 128;
constexpr int kMostWarps = 64, kMostBlocks = 32;  // of a multiprocessor
constexpr int kReservedShared = 1024;             // bytes of a block

// Blocks that a multiprocessor of compute capability 9.0 has at a time.
int resident_blocks(const LaunchCounts& launch, const Gpu& gpu, int registers) {
  constexpr int kGranule = 256, kRegistersOfPartition = 16384, kPartitions = 4;
  const int warps = static_cast<int>((count(launch.block) + 31) / 32);
  const int of_warp = std::max(kGranule, (registers * 32 + kGranule - 1) / kGranule * kGranule);
  const int by_registers =
      registers > 0 ? kPartitions * (kRegistersOfPartition / of_warp) / warps : kMostBlocks;
  const int by_shared =
      static_cast<int>(gpu.of("shared_memory") / static_cast<double>(launch.shared_bytes + kReservedShared));
  return std::max(1, std::min({kMostBlocks, kMostWarps / warps, by_registers, by_shared}));
}

double sum_of_counted(const cuda::counting::KernelCounts& counts) {
  double sum = 0;
  for (const double instructions : counts.instructions) sum += instructions;
  return sum -
         counts.of(Instruction::fma);  // whose share of the main loops is estimated with all fp32 arithmetic
}

// What a warp waits for, one after the other; it meets so many warps at a barrier of its block.
double clocks_of(const cuda::counting::WaitChain& chain, double warps, const Gpu& gpu) {
  const double barrier = gpu.of("barrier_latency") + warps * gpu.of("barrier_latency_of_warp");
  const double cluster_barrier =
      gpu.of("cluster_barrier_latency") + warps * gpu.of("cluster_barrier_latency_of_warp");
  return static_cast<double>(chain.device_rounds) * gpu.of("device_latency") +
         static_cast<double>(chain.shared_rounds) * gpu.of("shared_latency") +
         static_cast<double>(chain.exchanges) * gpu.of("exchange_latency") +
         static_cast<double>(chain.barriers) * barrier +
         static_cast<double>(chain.cluster_barriers) * cluster_barrier +
         static_cast<double>(chain.atomic_rounds) * gpu.of("atomic_latency");
}

}  // namespace

std::string_view name(Resource resource) {
  switch (resource) {
    case Resource::launch:
      return "launch";
    case Resource::memory:
      return "memory";
    case Resource::l2_cache:
      return "L2 cache";
    case Resource::shared_memory:
      return "shared memory";
    case Resource::issue:
      return "issue slots";
    case Resource::integer_units:
      return "integer units";
    case Resource::fp64_units:
      return "fp64 units";
    case Resource::tensor_cores:
      return "tensor cores";
    case Resource::special_functions:
      return "special functions";
    case Resource::shuffles:
      return "shuffles";
    case Resource::latency:
      return "latency";
  }
  return "";
}

LaunchTime launch_time(const LaunchCounts& launch, const Gpu& gpu, bool first) {
  const KernelBuild build = kernel_build(launch.kernel).value_or(KernelBuild{});
  const cuda::counting::KernelCounts& counts = launch.counts;
  LaunchTime time;
  time.registers = build.registers;
  time.resident_blocks = resident_blocks(launch, gpu, build.registers);
  const double warps = std::ceil(static_cast<double>(count(launch.block)) / 32);
  time.occupancy = time.resident_blocks * warps / kMostWarps;

  const double multiprocessors = gpu.of("multiprocessors"), clock = gpu.of("clock");
  const auto blocks = static_cast<double>(launch.blocks());
  const double busiest =
      std::ceil(blocks / multiprocessors) / blocks;  // a multiprocessor's share of the work
  time.waves = blocks / (multiprocessors * time.resident_blocks);
  // Seconds for work of all blocks, of which a multiprocessor does so much in a clock.
  const auto on_busiest = [&](double work, double per_clock) { return work * busiest / per_clock / clock; };

  const double counted = sum_of_counted(counts);
  time.instructions = counted * build.instructions;
  const double requested = counts.sectors * kSectorBytes;
  const double through_l1 = (requested - counts.bulk_bytes) / kWavefrontBytes;
  auto of = [&](Resource resource) -> double& { return time.of[static_cast<size_t>(resource)]; };
  of(Resource::launch) = gpu.of(first ? "first_launch" : "next_launch");
  of(Resource::memory) = (launch.touched.read + launch.touched.written) / gpu.of("copy_bandwidth");
  of(Resource::l2_cache) =
      std::max(requested / gpu.of("l2_bandwidth"), on_busiest(requested, gpu.of("l2_bytes_per_clock")));
  of(Resource::shared_memory) = on_busiest(counts.wavefronts, gpu.of("wavefronts_per_clock")) +
                                on_busiest(through_l1, gpu.of("requests_per_clock"));
  of(Resource::issue) = on_busiest(time.instructions, gpu.of("instructions_per_clock"));
  of(Resource::integer_units) = on_busiest(counted * build.integers, gpu.of("integers_per_clock"));
  of(Resource::fp64_units) = on_busiest(counted * build.doubles, gpu.of("doubles_per_clock"));
  of(Resource::tensor_cores) = busiest * multiprocessors *
                               (counts.mma_flop / (gpu.of("mma_sync_share") * gpu.of("peak_matrix_rate")) +
                                counts.warpgroup_mma_flop / gpu.of("matrix_rate"));
  of(Resource::special_functions) =
      on_busiest(counts.of(Instruction::special_function), gpu.of("special_functions_per_clock"));
  of(Resource::shuffles) = on_busiest(counts.of(Instruction::shuffle), gpu.of("shuffles_per_clock"));
  const double of_a_warp = time.instructions / (blocks * warps);
  of(Resource::latency) = std::ceil(time.waves) *
                          (clocks_of(launch.chain, warps, gpu) + of_a_warp * gpu.of("instruction_latency")) /
                          clock;

  const auto slowest = std::ranges::max_element(time.of.begin() + 1, time.of.end());
  time.seconds = of(Resource::launch) + *slowest;
  time.limiter =
      *slowest < of(Resource::launch) ? Resource::launch : static_cast<Resource>(slowest - time.of.begin());
  return time;
}

}  // namespace kvbound::sim
