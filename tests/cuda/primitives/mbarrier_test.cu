// Barriers of shared memory: phases, parities, arrivals.
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/mbarrier.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class MbarrierTest : public HopperTest {};

struct Rotation {
  int* numbers;
  uint64_t* written;
  uint64_t* read;

  __host__ __device__ Rotation(SharedMemory& memory, int threads)
      : numbers(memory.array<int>(threads)),
        written(memory.array<uint64_t>(1)),
        read(memory.array<uint64_t>(1)) {}
};

// Every round moves the numbers one thread on: all write, all read, with a barrier behind each.
__global__ void rotation_kernel(int rounds, int* numbers) {
  SharedMemory memory;
  const Rotation shared(memory, static_cast<int>(blockDim.x));
  if (threadIdx.x == 0) {
    mbarrier_init(shared.written, static_cast<int>(blockDim.x));
    mbarrier_init(shared.read, static_cast<int>(blockDim.x));
    mbarrier_fence_init();
  }
  __syncthreads();
  int mine = static_cast<int>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    const unsigned phase = static_cast<unsigned>(round) % 2;
    shared.numbers[threadIdx.x] = mine;
    mbarrier_arrive(shared.written);
    mbarrier_wait(shared.written, phase);
    mine = shared.numbers[(threadIdx.x + 1) % blockDim.x];
    mbarrier_arrive(shared.read);
    mbarrier_wait(shared.read, phase);
  }
  numbers[threadIdx.x] = mine;
}

TEST_F(MbarrierTest, AWaitShowsWhatWasWrittenBeforeEveryArrivalOfItsPhase) {
  constexpr int kThreads = 96;
  constexpr int kRounds = 7;
  under_every_schedule([] {
    Buffer<int> numbers(kThreads);
    launch<rotation_kernel>(
        LaunchShape(extent(1), extent(kThreads), shared_bytes<Rotation>(kThreads), nullptr), kRounds,
        numbers.data());
    const std::vector<int> found = download(numbers);
    for (int i = 0; i < kThreads; ++i) EXPECT_EQ(found[static_cast<size_t>(i)], (i + kRounds) % kThreads);
  });
}

// Three arrivals are expected; thread 1 gives one of them, thread 2 two. Thread 3 waits for the phase before
// the first, which is over, and then for the first.
__global__ void arrivals_kernel(int* number) {
  SharedMemory memory;
  int* const shared = memory.array<int>(2);
  uint64_t* const barrier = memory.array<uint64_t>(1);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 3);
    mbarrier_fence_init();
  }
  __syncthreads();
  if (threadIdx.x == 3) mbarrier_wait(barrier, 1);
  __syncthreads();
  if (threadIdx.x == 1) {
    shared[0] = 10;
    mbarrier_arrive(barrier);
  } else if (threadIdx.x == 2) {
    mbarrier_arrive_expect(barrier, 0);
    shared[1] = 7;
    mbarrier_arrive(barrier);
  } else if (threadIdx.x == 3) {
    mbarrier_wait(barrier, 0);
    *number = shared[0] + shared[1];
  }
}

TEST_F(MbarrierTest, APhaseEndsWithTheLastOfItsArrivalsWhoeverGivesThem) {
  under_every_schedule([] {
    Buffer<int> number(1);
    launch<arrivals_kernel>(LaunchShape(extent(1), extent(32), 64, nullptr), number.data());
    EXPECT_EQ(download(number), std::vector<int>{17});
  });
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
