// Launches whose times are computed by hand.
#include <kvbound/sim/roofline/launch_time.hpp>

#include <gtest/gtest.h>

#include <kvbound/sim/roofline/kernel_build.hpp>
#include <kvbound/sim/roofline/operation_time.hpp>

namespace kvbound::sim {
namespace {

using cuda::counting::Instruction;
using cuda::counting::LaunchCounts;

const Gpu& h100() {
  static const Gpu gpu = Gpu::named("h100");
  return gpu;
}

// A kernel that the tables do not know: a counted instruction stands for itself.
LaunchCounts launch(unsigned blocks, unsigned threads = 128, int64_t shared = 0) {
  LaunchCounts launch;
  launch.kernel = "unknown_kernel";
  launch.grid = cuda::emulation::dim3(blocks);
  launch.block = cuda::emulation::dim3(threads);
  launch.shared_bytes = shared;
  return launch;
}

double of(const LaunchTime& time, Resource resource) { return time.of[static_cast<size_t>(resource)]; }

TEST(LaunchTime, OfMemoryIsItsBytesAtTheBandwidthOfACopy) {
  LaunchCounts copy = launch(132 * 100);
  copy.touched = {1.2e9, 1.8e9};
  copy.counts.sectors = 3e9 / 32;
  const LaunchTime time = launch_time(copy, h100(), false);
  EXPECT_DOUBLE_EQ(of(time, Resource::memory), 1e-3);
  EXPECT_DOUBLE_EQ(of(time, Resource::l2_cache), 3e9 / 6.6e12);
  EXPECT_EQ(time.limiter, Resource::memory);
  EXPECT_DOUBLE_EQ(time.seconds, 1e-3 + 9.5e-7);
}

TEST(LaunchTime, OfRequestsThatReadASectorForEachNumberIsTheL2Caches) {
  LaunchCounts strided = launch(132 * 100);
  strided.touched = {1e9, 0};
  strided.counts.sectors = 8e9 / 32;
  EXPECT_EQ(launch_time(strided, h100(), false).limiter, Resource::l2_cache);
}

TEST(LaunchTime, OfFewBlocksIsThatOfTheirMultiprocessors) {
  LaunchCounts all = launch(132), few = launch(8);
  all.counts.wavefronts = few.counts.wavefronts = 132e6;
  EXPECT_DOUBLE_EQ(of(launch_time(all, h100(), false), Resource::shared_memory), 1e6 / 1.755e9);
  EXPECT_DOUBLE_EQ(of(launch_time(few, h100(), false), Resource::shared_memory), 132e6 / 8 / 1.755e9);
  LaunchCounts uneven = launch(133);
  uneven.counts.wavefronts = 133e6;
  EXPECT_DOUBLE_EQ(of(launch_time(uneven, h100(), false), Resource::shared_memory), 2e6 / 1.755e9);
}

TEST(LaunchTime, OfDoublePrecisionIsThatOfItsUnits) {
  LaunchCounts gram = launch(132);
  gram.kernel = "value_space_kernels::gram_kernel<Bfloat16>";
  gram.counts.instructions[static_cast<size_t>(Instruction::shuffle)] = 132e6;
  EXPECT_DOUBLE_EQ(of(launch_time(gram, h100(), false), Resource::fp64_units),
                   1e6 * kernel_build(gram.kernel)->doubles / 2 / 1.755e9);
}

TEST(LaunchTime, OfProductsDependsOnTheInstruction) {
  LaunchCounts products = launch(132);
  products.counts.mma_flop = 9.894e11;
  EXPECT_DOUBLE_EQ(of(launch_time(products, h100(), false), Resource::tensor_cores), 1e-3 / 0.629);
  products.counts.mma_flop = 0;
  products.counts.warpgroup_mma_flop = 7.98e11;
  const LaunchTime time = launch_time(products, h100(), false);
  EXPECT_DOUBLE_EQ(of(time, Resource::tensor_cores), 1e-3);
  EXPECT_EQ(time.limiter, Resource::tensor_cores);
}

TEST(LaunchTime, OfInstructionsIsFourAClock) {
  LaunchCounts work = launch(132, 1024);
  work.counts.instructions[static_cast<size_t>(Instruction::load)] = 132 * 4e6;
  work.counts.instructions[static_cast<size_t>(Instruction::special_function)] = 132 * 1e6;
  const LaunchTime time = launch_time(work, h100(), false);
  EXPECT_DOUBLE_EQ(of(time, Resource::issue), 5e6 / 4 / 1.755e9);
  EXPECT_DOUBLE_EQ(of(time, Resource::special_functions), 2e6 / 1.755e9);
  EXPECT_EQ(time.limiter, Resource::special_functions);
}

TEST(LaunchTime, OfAChainIsWaitedForInEveryWave) {
  LaunchCounts chain = launch(132 * 16, 128);  // 16 blocks of 4 warps fill a multiprocessor
  chain.chain = {.device_rounds = 2,
                 .shared_rounds = 3,
                 .exchanges = 5,
                 .barriers = 7,
                 .cluster_barriers = 13,
                 .atomic_rounds = 11};
  const double clocks = 2 * 690 + 3 * 29 + 5 * 26 + 7 * (12 + 4 * 2) + 13 * (318 + 4 * 9.8) + 11 * 29;
  LaunchTime time = launch_time(chain, h100(), false);
  EXPECT_EQ(time.resident_blocks, 16);
  EXPECT_DOUBLE_EQ(time.waves, 1);
  EXPECT_DOUBLE_EQ(of(time, Resource::latency), clocks / 1.755e9);
  chain.grid = cuda::emulation::dim3(132 * 16 + 1);
  time = launch_time(chain, h100(), false);
  EXPECT_DOUBLE_EQ(of(time, Resource::latency), 2 * clocks / 1.755e9);
}

TEST(LaunchTime, AWarpsInstructionsTakeSomeClocksEach) {
  LaunchCounts few = launch(132, 128);  // 4 warps on a multiprocessor, each of 1e6 instructions
  few.counts.instructions[static_cast<size_t>(Instruction::load)] = 132 * 4e6;
  LaunchTime time = launch_time(few, h100(), false);
  EXPECT_DOUBLE_EQ(of(time, Resource::latency), 1e6 * 3.5 / 1.755e9);
  EXPECT_EQ(time.limiter, Resource::latency);
  few.grid = cuda::emulation::dim3(132 * 16);  // the same instructions of 16 times as many warps
  time = launch_time(few, h100(), false);
  EXPECT_DOUBLE_EQ(of(time, Resource::latency), 1e6 * 3.5 / 16 / 1.755e9);
  EXPECT_EQ(time.limiter, Resource::issue);
}

TEST(LaunchTime, OccupancyIsLimitedByThreadsSharedMemoryAndBlocks) {
  struct Case {
    unsigned threads;
    int64_t shared;
    int blocks;
  };
  for (const auto& [threads, shared, blocks] : {Case{32, 0, 32},
                                                {64, 0, 32},
                                                {1024, 0, 2},
                                                {128, 232448, 1},
                                                {128, 100 << 10, 2},
                                                {128, 37 << 10, 6}}) {
    const LaunchTime time = launch_time(launch(1, threads, shared), h100(), false);
    EXPECT_EQ(time.resident_blocks, blocks) << threads << " threads, " << shared << " bytes";
    EXPECT_DOUBLE_EQ(time.occupancy, blocks * (threads / 32) / 64.0);
  }
}

TEST(LaunchTime, RegistersAreThoseOfTheTable) {
  LaunchCounts known = launch(1000, 1024);
  known.kernel = "select_top_kernel";
  const LaunchTime time = launch_time(known, h100(), false);
  EXPECT_GT(time.registers, 0);
  EXPECT_EQ(time.resident_blocks, time.registers <= 32 ? 2 : 1);
}

TEST(LaunchTime, OfAnEmptyKernelIsItsLaunch) {
  EXPECT_DOUBLE_EQ(launch_time(launch(1), h100(), true).seconds, 2.4e-6);
  EXPECT_DOUBLE_EQ(launch_time(launch(1), h100(), false).seconds, 9.5e-7);
  EXPECT_EQ(launch_time(launch(1), h100(), false).limiter, Resource::launch);
}

TEST(OperationTime, IsTheSumOfItsLaunchesAndTheHostsShareBesideIt) {
  CountedWork work;
  work.launches = {launch(1), launch(1)};
  work.launches[1].touched = {3e9, 0};
  work.requests.fills = 2;
  work.requests.moves = 1;
  work.requests.synchronisations = 1;
  work.requests.uploads = 2;
  work.requests.upload_bytes = 5'000'000;
  work.requests.allocations = 1;
  const OperationTime time = operation_time(work, h100());
  ASSERT_EQ(time.launches.size(), 2U);
  EXPECT_DOUBLE_EQ(time.device_seconds, 2.4e-6 + (9.5e-7 + 1e-3) + 3 * 9.5e-7);
  EXPECT_DOUBLE_EQ(time.kernel_seconds, 1e-3);
  EXPECT_DOUBLE_EQ(time.host_seconds, 5.0e-6 + 2 * 5.4e-6 + 5e6 / 5.5e10 + 4.7e-5);
  EXPECT_EQ(time.limiter, Resource::memory);
}

}  // namespace
}  // namespace kvbound::sim
