// Clusters: ranks, each other's shared memory, the cluster's barrier; and registers moved between warpgroups.
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/cluster.hpp>
#include <kvbound/cuda/primitives/registers.hpp>
#include <kvbound/cuda/primitives/remote_store.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class Cluster : public HopperTest {};

LaunchShape clusters(int64_t blocks, int64_t size, int64_t threads, int64_t shared) {
  return LaunchShape(extent(blocks), extent(threads), shared, nullptr).in_clusters(extent(size));
}

__global__ void rank_kernel(int* ranks) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  ranks[2 * block] = cluster_rank();
  ranks[2 * block + 1] = cluster_size();
}

TEST_F(Cluster, RanksAreCountedAlongXThenYThenZ) {
  under_every_schedule([] {
    Buffer<int> ranks(2 * 4 * 6 * 2);
    launch<rank_kernel>(LaunchShape(extent(4, 6, 2), extent(1), 0, nullptr).in_clusters(extent(2, 3, 1)),
                        ranks.data());
    const std::vector<int> found = download(ranks);
    for (size_t block = 0; block < 48; ++block) {
      const size_t x = block % 4;
      const size_t y = block / 4 % 6;
      EXPECT_EQ(found[2 * block], static_cast<int>(x % 2 + y % 3 * 2));
      EXPECT_EQ(found[2 * block + 1], 6);
    }
    launch<rank_kernel>(LaunchShape(extent(48), extent(1), 0, nullptr), ranks.data());
    for (size_t i = 0; i < 96; i += 2) EXPECT_EQ(download(ranks)[i], 0);
  });
}

// Every round each thread's number moves to the next block, and one thread on.
__global__ void rotation_kernel(int rounds, int* numbers) {
  SharedMemory memory;
  int* const mine = memory.array<int>(blockDim.x);
  const int next = (cluster_rank() + 1) % cluster_size();
  int number = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  cluster_arrive();  // all blocks have begun
  cluster_wait();
  for (int round = 0; round < rounds; ++round) {
    map_shared(mine, next)[(threadIdx.x + 1) % blockDim.x] = number;
    cluster_arrive();
    cluster_wait();
    number = mine[threadIdx.x];
    cluster_arrive();
    cluster_wait();
  }
  numbers[blockIdx.x * blockDim.x + threadIdx.x] = number;
}

TEST_F(Cluster, ABlockWritesToTheSharedMemoryOfAnother) {
  constexpr int kThreads = 64;
  constexpr int kRounds = 3;
  for (const int size : {1, 2, 4, 8}) {
    std::vector<int> expected;
    for (int block = 0; block < 8; ++block) {
      for (int thread = 0; thread < kThreads; ++thread) {
        const int from = block / size * size + (block % size + kRounds * (size - 1)) % size;
        expected.push_back(from * kThreads + (thread - kRounds + kThreads) % kThreads);
      }
    }
    under_every_schedule([&] {
      Buffer<int> numbers(8 * kThreads);
      launch<rotation_kernel>(clusters(8, size, kThreads, kThreads * 4), kRounds, numbers.data());
      EXPECT_EQ(download(numbers), expected) << "clusters of " << size;
    });
  }
}

// Every round each block sends a number of each thread to all blocks, and adds what it gets: two sets of
// numbers in turns, with no barrier of the cluster but the first.
__global__ void exchange_kernel(int rounds, int* sums) {
  SharedMemory memory;
  int* const numbers = memory.array<int>(2 * 8 * blockDim.x);
  uint64_t* const arrived = memory.array<uint64_t>(2);
  const auto own = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (own == 0) {
    mbarrier_init(arrived, 1);
    mbarrier_init(arrived + 1, 1);
    mbarrier_fence_init();
  }
  cluster_arrive_relaxed();
  cluster_wait();
  int number = static_cast<int>(blockIdx.x) * threads + own;
  for (int round = 0; round < rounds; ++round) {
    int* const now = numbers + round % 2 * 8 * threads;
    if (own == 0) mbarrier_arrive_expect(arrived + round % 2, cluster_size() * threads * 4);
    for (int rank = 0; rank < cluster_size(); ++rank)
      store_async(now + cluster_rank() * threads + own, rank, number, arrived + round % 2);
    mbarrier_wait<Senders::cluster>(arrived + round % 2, static_cast<unsigned>(round / 2 % 2));
    number = cluster_rank();
    for (int rank = 0; rank < cluster_size(); ++rank) number += now[rank * threads + own] * (rank + 1);
    number %= 1009;
    __syncthreads();  // all threads have read this round's numbers, before any sends the next one's
  }
  sums[static_cast<int>(blockIdx.x) * threads + own] = number;
}

TEST_F(Cluster, BlocksSendNumbersToEachOtherWithoutABarrier) {
  constexpr int kThreads = 64, kRounds = 6;
  for (const int size : {1, 2, 8}) {
    std::vector<int> expected(8 * kThreads);
    std::iota(expected.begin(), expected.end(), 0);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<int> next(expected.size());
      for (int block = 0; block < 8; ++block) {
        for (int thread = 0; thread < kThreads; ++thread) {
          int sum = block % size;
          for (int rank = 0; rank < size; ++rank)
            sum += expected[(block / size * size + rank) * kThreads + thread] * (rank + 1);
          next[block * kThreads + thread] = sum % 1009;
        }
      }
      expected = next;
    }
    under_every_schedule([&] {
      Buffer<int> sums(8 * kThreads);
      launch<exchange_kernel>(clusters(8, size, kThreads, 2 * 8 * kThreads * 4 + 16), kRounds, sums.data());
      EXPECT_EQ(download(sums), expected) << "clusters of " << size;
    });
  }
}

// Threads add to counters in the first block, and read what the last block has counted.
__global__ void counters_kernel(int* counts) {
  SharedMemory memory;
  int* const counters = memory.array<int>(2);
  if (threadIdx.x == 0) counters[0] = counters[1] = 0;
  cluster_arrive();
  cluster_wait();
  atomicAdd(map_shared(counters, 0), cluster_rank() + 1);
  atomicAdd(map_shared(counters, cluster_size() - 1) + 1, 1);
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) {
    counts[2 * blockIdx.x] = *map_shared(counters, 0);
    counts[2 * blockIdx.x + 1] = map_shared(counters, cluster_size() - 1)[1];
  }
  cluster_arrive();
  cluster_wait();
}

TEST_F(Cluster, AtomicsCountAcrossItsBlocks) {
  under_every_schedule([] {
    Buffer<int> counts(2 * 6);
    launch<counters_kernel>(clusters(6, 3, 32, 8), counts.data());
    std::vector<int> expected;
    for (int block = 0; block < 6; ++block) expected.insert(expected.end(), {32 * (1 + 2 + 3), 32 * 3});
    EXPECT_EQ(download(counts), expected);
  });
}

// Between its arrival and its wait a thread does what does not concern the others.
__global__ void split_barrier_kernel(int* numbers) {
  SharedMemory memory;
  int* const shared = memory.array<int>(1);
  if (threadIdx.x == 0) *shared = cluster_rank() + 40;
  cluster_arrive();
  int sum = 0;
  for (int i = 0; i <= static_cast<int>(threadIdx.x); ++i) sum += i;
  cluster_wait();
  numbers[blockIdx.x * blockDim.x + threadIdx.x] = sum + *map_shared(shared, cluster_rank() ^ 1);
  cluster_arrive();
  cluster_wait();
}

TEST_F(Cluster, ItsBarrierIsAnArrivalAndAWait) {
  under_every_schedule([] {
    Buffer<int> numbers(2 * 32);
    launch<split_barrier_kernel>(clusters(2, 2, 32, 4), numbers.data());
    const std::vector<int> found = download(numbers);
    for (int i = 0; i < 64; ++i) {
      const int thread = i % 32;
      EXPECT_EQ(found[static_cast<size_t>(i)], thread * (thread + 1) / 2 + 41 - i / 32);
    }
  });
}

class Registers : public HopperTest {};

constexpr int kWarpgroups = 3;

__global__ void __launch_bounds__(128 * kWarpgroups, 1) registers_kernel(int* numbers) {
  if (threadIdx.x < 128) {
    lower_registers<24>();
    numbers[threadIdx.x] = 24;
  } else {
    raise_registers<240>();
    numbers[threadIdx.x] = 240;
  }
}

TEST_F(Registers, MoveFromOneWarpgroupToOthers) {
  under_every_schedule([] {
    Buffer<int> numbers(128 * kWarpgroups);
    launch<registers_kernel>(LaunchShape(extent(1), extent(128 * kWarpgroups), 0, nullptr), numbers.data());
    const std::vector<int> found = download(numbers);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], i < 128 ? 24 : 240);
  });
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
