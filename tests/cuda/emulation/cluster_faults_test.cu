// The emulation reports wrong uses of clusters and of setmaxnreg: kernels with a template of faults, correct
// while all are turned off.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/cluster.hpp>
#include <kvbound/cuda/primitives/registers.hpp>
#include <kvbound/cuda/primitives/remote_store.hpp>

#include "support/device_test.hpp"
#include "support/emulation_faults.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

enum class Fault {
  kNone,
  kNoFirstBarrier,
  kNoLastBarrier,
  kNoWait,
  kNoArrival,
  kTwoArrivals,
  kEarlyReturn,
  kWrongRank
};

// Every block reads a number of the next one.
__global__ void ring_kernel(Fault fault, float* numbers) {
  SharedMemory memory;
  float* const mine = memory.array<float>(1);
  if (threadIdx.x == 0) *mine = static_cast<float>(cluster_rank());
  if (fault == Fault::kEarlyReturn && threadIdx.x == 1 && cluster_rank() == 1) return;
  if (fault != Fault::kNoFirstBarrier && fault != Fault::kNoArrival) cluster_arrive();
  if (fault == Fault::kTwoArrivals) cluster_arrive();
  if (fault != Fault::kNoFirstBarrier && fault != Fault::kNoWait) cluster_wait();
  const int next = fault == Fault::kWrongRank ? cluster_size() : (cluster_rank() + 1) % cluster_size();
  const float number = *map_shared(mine, next);
  numbers[blockIdx.x * blockDim.x + threadIdx.x] = number;
  if (fault == Fault::kNoLastBarrier || fault == Fault::kNoWait) return;
  cluster_arrive();
  cluster_wait();
}

struct Outcome {
  std::string fault;
  bool right = false;
};

Outcome ring(Fault fault) {
  constexpr int kSize = 4;
  constexpr int kThreads = 32;
  Buffer<float> numbers(kSize * kThreads);
  Outcome outcome;
  outcome.fault = fault_of([&] {
    launch<ring_kernel>(shape(kSize, kThreads, 4).in_clusters(extent(kSize)), fault, numbers.data());
  });
  std::vector<float> expected;
  for (int i = 0; i < kSize * kThreads; ++i)
    expected.push_back(static_cast<float>((i / kThreads + 1) % kSize));
  outcome.right = outcome.fault.empty() && download(numbers) == expected;
  return outcome;
}

void expect_fault(Fault planted, const std::string& words) {
  under_every_schedule([&] { expect_words(ring(planted).fault, {words}); });
}

TEST(ClusterFaults, NoneIsFoundInACorrectKernel) {
  under_every_schedule([&] {
    const Outcome outcome = ring(Fault::kNone);
    EXPECT_TRUE(outcome.right) << outcome.fault;
  });
}

TEST(ClusterFaults, ABarrierLeftOutBeforeTheFirstAccessIsReported) {
  expect_fault(Fault::kNoFirstBarrier, "shared memory that cannot be accessed, for its block has not begun");
}

TEST(ClusterFaults, ABarrierLeftOutBehindTheLastAccessIsReported) {
  expect_fault(Fault::kNoLastBarrier, "shared memory that cannot be accessed, for its block has ended");
}

TEST(ClusterFaults, ThreadsArriveAndWaitInTurns) {
  expect_fault(Fault::kNoArrival, "waits at the cluster's barrier without having arrived there");
  expect_fault(Fault::kTwoArrivals, "arrives at the cluster's barrier again");
  under_every_schedule([&] { EXPECT_NE(ring(Fault::kNoWait).fault, ""); });
}

TEST(ClusterFaults, AThreadThatDoesNotTakePartIsReported) {
  under_every_schedule([&] {
    const std::string fault = ring(Fault::kEarlyReturn).fault;
    expect_words(fault, {"the cluster's barrier", "return"});
  });
}

TEST(ClusterFaults, ARankThatIsNotInTheClusterIsReported) {
  expect_fault(Fault::kWrongRank, "maps shared memory to rank 4 of a cluster of 4");
}

// Between the barriers one block writes what another reads: a barrier between them is missing.
__global__ void race_kernel(bool barrier, float* numbers) {
  SharedMemory memory;
  float* const mine = memory.array<float>(1);
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) *map_shared(mine, cluster_rank() ^ 1) = static_cast<float>(cluster_rank());
  if (barrier) {
    cluster_arrive();
    cluster_wait();
  }
  numbers[blockIdx.x * blockDim.x + threadIdx.x] = *mine;
  cluster_arrive();
  cluster_wait();
}

TEST(ClusterFaults, ABarrierLeftOutBetweenAWriteAndAReadShowsInAResult) {
  under_every_schedule([&] {
    const auto right = [](bool barrier) {
      Buffer<float> numbers(64);
      launch<race_kernel>(shape(2, 32, 4).in_clusters(extent(2)), barrier, numbers.data());
      std::vector<float> expected(64, 1);
      std::fill(expected.begin() + 32, expected.end(), 0.0F);
      return download(numbers) == expected;
    };
    EXPECT_TRUE(right(true));
    EXPECT_FALSE(right(false));
  });
}

enum class SendFault { kNone, kNoFirstBarrier, kNoFence, kNothingExpected, kTooLittleExpected, kNoWait };

// Each thread sends its number to the other block of a cluster of two.
__global__ void send_kernel(SendFault fault, int* numbers) {
  SharedMemory memory;
  int* const mine = memory.array<int>(blockDim.x);
  uint64_t* const arrived = memory.array<uint64_t>(1);
  const auto own = static_cast<int>(threadIdx.x);
  if (own == 0) {
    mbarrier_init(arrived, 1);
    if (fault != SendFault::kNoFence) mbarrier_fence_init();
  }
  cluster_arrive_relaxed();
  if (fault != SendFault::kNoFirstBarrier) cluster_wait();
  const int expected = static_cast<int>(blockDim.x) * 4 - (fault == SendFault::kTooLittleExpected ? 4 : 0);
  if (own == 0 && fault != SendFault::kNothingExpected) mbarrier_arrive_expect(arrived, expected);
  store_async(mine + own, cluster_rank() ^ 1, own + 1, arrived);
  if (fault != SendFault::kNoWait) mbarrier_wait<Senders::cluster>(arrived, 0);
  numbers[blockIdx.x * blockDim.x + threadIdx.x] = mine[own];
  if (fault == SendFault::kNoFirstBarrier) cluster_wait();
}

TEST(ClusterFaults, NumbersSentWronglyAreReported) {
  const auto fault = [](SendFault planted) {
    constexpr int kThreads = 32;
    Buffer<int> numbers(2 * kThreads);
    const std::string found = fault_of([&] {
      launch<send_kernel>(shape(2, kThreads, kThreads * 4 + 8).in_clusters(extent(2)), planted,
                          numbers.data());
    });
    std::vector<int> expected;
    for (int i = 0; i < 2 * kThreads; ++i) expected.push_back(i % kThreads + 1);
    return found.empty() && download(numbers) != expected ? "other numbers" : found;
  };
  under_every_schedule([&] {
    EXPECT_EQ(fault(SendFault::kNone), "");
    EXPECT_NE(fault(SendFault::kNoFirstBarrier), "");
    expect_words(fault(SendFault::kNoFence), {"st.async", "with no fence behind that"});
    expect_words(fault(SendFault::kNothingExpected), {"mbarrier.try_wait", "1 of 1 arrivals"});
    EXPECT_NE(fault(SendFault::kTooLittleExpected), "");
    EXPECT_NE(fault(SendFault::kNoWait), "");
  });
}

__global__ void empty_kernel() {}

TEST(ClusterFaults, AGridThatIsNotMadeOfClustersIsRefused) {
  const auto fault = [](int64_t blocks, dim3 cluster) {
    return fault_of([&] { launch<empty_kernel>(shape(blocks, 32).in_clusters(cluster)); });
  };
  EXPECT_EQ(fault(16, extent(8)), "");
  expect_words(fault(18, extent(9)), {"invalid cluster 9 x 1 x 1 of a grid 18 x 1 x 1"});
  expect_words(fault(6, extent(4)), {"invalid cluster 4 x 1 x 1"});
  expect_words(fault(6, extent(0)), {"invalid cluster 0 x 1 x 1"});
  expect_words(fault(6, extent(2, 2)), {"invalid cluster 2 x 2 x 1"});
}

// Registers.

__global__ void registers_kernel(int warps, int then) {
  if (warp() < warps) raise_registers<160>();
  if (then == 152) raise_registers<152>();
  if (then == 168) raise_registers<168>();
}

TEST(ClusterFaults, AWholeWarpgroupSetsItsRegisters) {
  const auto fault = [](int threads, int warps, int then) {
    return fault_of([&] { launch<registers_kernel>(shape(1, threads), warps, then); });
  };
  under_every_schedule([&] {
    EXPECT_EQ(fault(128, 4, 168), "");
    expect_words(fault(128, 3, 0), {"setmaxnreg.inc at"});
    expect_words(fault(128, 1, 168),
                 {"setmaxnreg.inc", "but another warp of its warpgroup in setmaxnreg.inc"});
    expect_words(fault(128, 4, 152), {"setmaxnreg.inc from 160 registers to 152"});
    expect_words(fault(64, 2, 0), {"setmaxnreg.inc in the last warps of a block, which are not four"});
  });
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
