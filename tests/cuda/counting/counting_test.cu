// Kernels whose work is counted by hand.
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/counting/counting.hpp>
#include <kvbound/cuda/counting/warp_requests.hpp>
#include <kvbound/cuda/primitives/async_copy.hpp>
#include <kvbound/cuda/primitives/bulk_copy.hpp>
#include <kvbound/cuda/primitives/cluster.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/reference/core/host_rules.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using counting::Counting;
using counting::Instruction;
using counting::LaunchCounts;
using counting::Sampling;

// The only launch that `work` makes.
template <class Work>
LaunchCounts counts_of(const Work& work, const Sampling& sampling = {}) {
  const Counting counting(sampling);
  work();
  const std::vector<LaunchCounts> launches = counting.launches();
  EXPECT_EQ(launches.size(), 1U);
  return launches.front();
}

LaunchShape shape(int64_t blocks, int64_t threads, int64_t shared = 0) {
  return {extent(blocks), extent(threads), shared, nullptr};
}

constexpr size_t kWidth4 = 2, kWidth8 = 3, kWidth16 = 4;

int64_t thread() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

template <class T>
__global__ void copy_kernel(const T* from, T* to) {
  to[thread()] = from[thread()];
}

TEST(Counting, OfACopyIsEverySectorOnce) {
  constexpr int64_t kBlocks = 3, kThreads = 64, kWarps = kBlocks * kThreads / 32;
  constexpr int64_t kBytes = kBlocks * kThreads * 16;
  const Buffer<uint4> from(kBlocks * kThreads);
  Buffer<uint4> to(kBlocks * kThreads);
  const LaunchCounts counted =
      counts_of([&] { launch<copy_kernel<uint4>>(shape(kBlocks, kThreads), from.data(), to.data()); });
  EXPECT_EQ(counted.kernel, "copy_kernel<uint4>");
  EXPECT_EQ(counted.blocks(), 3U);
  EXPECT_FALSE(counted.sampled());
  EXPECT_EQ(counted.counts.of(Instruction::load), kWarps);
  EXPECT_EQ(counted.counts.of(Instruction::store), kWarps);
  EXPECT_EQ(counted.counts.device_loads[kWidth16], kWarps);
  EXPECT_EQ(counted.counts.device_stores[kWidth16], kWarps);
  EXPECT_EQ(counted.counts.device_requests, 2 * kWarps);
  EXPECT_EQ(counted.counts.useful_bytes, 2 * kBytes);
  EXPECT_EQ(counted.counts.sectors, 2 * kBytes / 32);
  EXPECT_EQ(counted.touched.read, kBytes);
  EXPECT_EQ(counted.touched.written, kBytes);
  EXPECT_EQ(counted.counts.wavefronts, 0);
  EXPECT_EQ(counted.chain.device_rounds, 1);
}

__global__ void dependent_copy_kernel(bool early, const float* from, float* to) {
  const float number = early ? from[thread()] : 0;
  begin_dependent_launch();
  to[thread()] = early ? number : from[thread()];
}

// Of plain loads and stores only the counted build knows.
TEST(Counting, RefusesAnAccessBeforeTheLaunchBeforeHasBeenWaitedFor) {
  const Buffer<float> from(64);
  Buffer<float> to(64);
  const auto copy = [&](bool early) {
    launch_dependent<dependent_copy_kernel>(shape(2, 32), early, from.data(), to.data());
  };
  EXPECT_NO_THROW(copy(false));
  EXPECT_THROW(copy(true), DeviceError);
}

// Thread i reads number stride i + offset.
__global__ void strided_kernel(const float* from, int64_t stride, int64_t offset, float* to) {
  to[thread()] = from[thread() * stride + offset];
}

TEST(Counting, OfAStridedCopyIsASectorForEachNumber) {
  constexpr int64_t kThreads = 128;
  const Buffer<float> from(kThreads * 64 + 8);
  Buffer<float> to(kThreads);
  struct Case {
    int64_t stride, offset;
    double sectors;  // of a warp's load
  };
  for (const auto& [stride, offset, sectors] :
       {Case{1, 0, 4}, {1, 1, 5}, {1, 8, 4}, {2, 0, 8}, {4, 0, 16}, {8, 0, 32}, {64, 0, 32}, {0, 5, 1}}) {
    const LaunchCounts counted = counts_of(
        [&] { launch<strided_kernel>(shape(1, kThreads), from.data(), stride, offset, to.data()); });
    EXPECT_EQ(counted.counts.device_loads[kWidth4], 4);
    EXPECT_EQ(counted.counts.sectors, 4 * (sectors + 4)) << "stride " << stride << ", offset " << offset;
    EXPECT_EQ(counted.counts.useful_bytes, 4 * (stride == 0 ? 4 : 128) + 4 * 128) << "stride " << stride;
  }
}

// Thread i reads T number stride i, modulo the array, of shared memory.
template <class T>
__global__ void conflict_kernel(int stride, T* to) {
  SharedMemory memory;
  T* const shared = memory.array<T>(33 * 32);
  if (stride < 0) shared[threadIdx.x] = to[0];
  to[threadIdx.x] = shared[threadIdx.x * stride % (33 * 32)];
}

TEST(Counting, OfSharedMemoryAreWavefronts) {
  Buffer<float> to(32);
  struct Case {
    int stride;
    double wavefronts;
  };
  for (const auto& [stride, wavefronts] :
       {Case{0, 1}, {1, 1}, {2, 2}, {3, 1}, {4, 4}, {16, 16}, {17, 1}, {32, 32}, {33, 1}}) {
    const LaunchCounts counted =
        counts_of([&] { launch<conflict_kernel<float>>(shape(1, 32, 33 * 32 * 4), stride, to.data()); });
    EXPECT_EQ(counted.counts.shared_loads[kWidth4], 1) << "stride " << stride;
    EXPECT_EQ(counted.counts.wavefronts, wavefronts) << "stride " << stride;
    EXPECT_EQ(counted.counts.least_wavefronts, 1) << "stride " << stride;
    EXPECT_EQ(counted.chain.shared_rounds, 1);
  }
}

TEST(Counting, OfWideSharedAccessesIsPassByPass) {
  Buffer<uint4> wide(32);
  Buffer<uint2> half(32);
  struct Case {
    int stride;
    double of_16_bytes, of_8_bytes;
  };
  for (const auto& [stride, of_16_bytes, of_8_bytes] :
       {Case{1, 4, 2}, {2, 8, 4}, {3, 4, 2}, {8, 32, 16}, {9, 4, 2}, {0, 4, 2}}) {
    const LaunchCounts counted =
        counts_of([&] { launch<conflict_kernel<uint4>>(shape(1, 32, 33 * 32 * 16), stride, wide.data()); });
    EXPECT_EQ(counted.counts.shared_loads[kWidth16], 1);
    EXPECT_EQ(counted.counts.wavefronts, of_16_bytes) << "stride " << stride;
    EXPECT_EQ(counted.counts.least_wavefronts, 4);
    const LaunchCounts halves =
        counts_of([&] { launch<conflict_kernel<uint2>>(shape(1, 32, 33 * 32 * 8), stride, half.data()); });
    EXPECT_EQ(halves.counts.shared_loads[kWidth8], 1);
    EXPECT_EQ(halves.counts.wavefronts, of_8_bytes) << "stride " << stride;
    EXPECT_EQ(halves.counts.least_wavefronts, 2);
  }
}

struct Three {
  int numbers[3];
};

// All lanes read the same 12 bytes.
__global__ void object_kernel(Three* to) {
  SharedMemory memory;
  Three* const shared = memory.array<Three>(2);
  if (threadIdx.x == 0) shared[0] = to[32];
  __syncwarp();
  to[threadIdx.x] = shared[0];
}

TEST(Counting, OfAnObjectIsByWordsOfAPowerOfTwo) {
  Buffer<Three> to(33);
  const LaunchCounts counted = counts_of([&] { launch<object_kernel>(shape(1, 32, 32), to.data()); });
  EXPECT_EQ(counted.counts.shared_loads[kWidth8], 1);
  EXPECT_EQ(counted.counts.shared_loads[kWidth4], 1);
  EXPECT_EQ(counted.counts.wavefronts, (2 + 1) + (1 + 1))
      << "two halves and a whole of a warp, and one lane's stores";
}

// Banks are those of the GPU, where arrays lie behind each other.
__global__ void two_arrays_kernel(int first, float* to) {
  SharedMemory memory;
  float* const one = memory.array<float>(first);
  float* const other = memory.array<float>(64);
  if (first < 0) one[threadIdx.x] = other[threadIdx.x] = to[0];
  float* const arrays[2] = {one, other};
  to[threadIdx.x] = arrays[threadIdx.x / 16][threadIdx.x];
}

TEST(Counting, OfSharedMemoryKnowsWhereArraysLie) {
  Buffer<float> to(32);
  const auto wavefronts = [&](int first) {
    return counts_of([&] { launch<two_arrays_kernel>(shape(1, 32, 1024), first, to.data()); })
        .counts.wavefronts;
  };
  EXPECT_EQ(wavefronts(32), 1);  // lanes 16..31 read words 48..63: banks 16..31
  EXPECT_EQ(wavefronts(16), 2);  // words 32..47: banks 0..15
}

// A warp multiplies `steps` tiles, whose rows lie `row` numbers apart.
__global__ void mma_loop_kernel(int steps, int row, float* to) {
  SharedMemory memory;
  uint16_t* const tile = memory.array<uint16_t>(16 * 64);
  float sums[4] = {};
  for (int step = 0; step < steps; ++step) {
    uint32_t a[4];
    ldmatrix_x4(a, tile + lane() % 16 * row + lane() / 16 * 8);
    const uint32_t b[2] = {a[0], a[1]};
    mma_m16n8k16<Bfloat16>(sums, a, b);
  }
  to[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

TEST(Counting, OfAnMmaLoop) {
  constexpr int kSteps = 7, kWarps = 2;
  Buffer<float> to(32 * kWarps);
  const auto counts = [&](int row) {
    return counts_of([&] { launch<mma_loop_kernel>(shape(1, 32 * kWarps, 2048), kSteps, row, to.data()); })
        .counts;
  };
  const counting::KernelCounts conflicts = counts(64);  // eight rows' parts of 16 bytes begin in one bank
  EXPECT_EQ(conflicts.of(Instruction::mma), kWarps * kSteps);
  EXPECT_EQ(conflicts.mma_flop, kWarps * kSteps * 2.0 * 16 * 8 * 16);
  EXPECT_EQ(conflicts.of(Instruction::matrix_load), kWarps * kSteps);
  EXPECT_EQ(conflicts.least_wavefronts, kWarps * kSteps * 4);
  EXPECT_EQ(conflicts.wavefronts, kWarps * kSteps * 4 * 8);
  EXPECT_EQ(conflicts.of(Instruction::load), 0) << "what the emulation reads for ldmatrix is no load";
  EXPECT_EQ(counts(24).wavefronts, kWarps * kSteps * 4) << "rows of 48 bytes";
}

__global__ void steps_kernel(float* to, unsigned* sum) {
  SharedMemory memory;
  float* const shared = memory.array<float>(8);
  float number = expf(to[threadIdx.x]);
  number = warp_sum(number);
  if (lane() == 0) shared[warp()] = number;
  __syncthreads();
  __syncwarp();
  if (__any_sync(kAllLanes, number > 0)) atomicAdd(sum, 1U);
  to[threadIdx.x] = sqrtf(logf(shared[0]));
}

TEST(Counting, OfStepsThatLanesTakeTogether) {
  constexpr int kWarps = 4;
  Buffer<float> to(std::vector<float>(32 * kWarps, 1));
  Buffer<unsigned> sum(std::vector<unsigned>{0});
  const LaunchCounts counted =
      counts_of([&] { launch<steps_kernel>(shape(1, 32 * kWarps, 32), to.data(), sum.data()); });
  const counting::KernelCounts& counts = counted.counts;
  EXPECT_EQ(counts.of(Instruction::special_function), 3 * kWarps);
  EXPECT_EQ(counts.of(Instruction::shuffle), (5 + 1) * kWarps);
  EXPECT_EQ(counts.of(Instruction::block_barrier), kWarps);
  EXPECT_EQ(counts.of(Instruction::warp_barrier), kWarps);
  EXPECT_EQ(counts.of(Instruction::atomic), kWarps);
  EXPECT_EQ(counts.shared_stores[kWidth4], kWarps);
  EXPECT_EQ(counted.chain.exchanges, 6);
  EXPECT_EQ(counted.chain.barriers, 1);
  EXPECT_EQ(counted.chain.device_rounds, 1);
  EXPECT_EQ(counted.chain.atomic_rounds, 1);
}

// Lane l takes l + 1 turns: 32 requests, the n-th of 32 - n lanes.
__global__ void uneven_kernel(const float* from, float* to) {
  float sum = 0;
  for (int turn = 0; turn <= lane(); ++turn) sum += from[turn * 32 + lane()];
  to[thread()] = sum;
}

TEST(Counting, OfLanesThatTakeDifferentlyManyTurns) {
  const Buffer<float> from(32 * 32);
  Buffer<float> to(32);
  const LaunchCounts counted =
      counts_of([&] { launch<uneven_kernel>(shape(1, 32), from.data(), to.data()); });
  EXPECT_EQ(counted.counts.device_loads[kWidth4], 32);
  EXPECT_EQ(counted.counts.useful_bytes, 4 * (32 * 33 / 2) + 128);
  EXPECT_EQ(counted.counts.sectors, 8 * (1 + 2 + 3 + 4) + 4);
}

// Rows of 16 bytes are copied asynchronously; the last of four is filled with zeros.
__global__ void async_kernel(const uint4* from, uint4* to) {
  SharedMemory memory;
  uint4* const shared = memory.array<uint4>(64);
  async_copy16(&shared[threadIdx.x], &from[threadIdx.x], threadIdx.x % 4 == 3 ? 0 : 16);
  async_commit();
  async_wait<0>();
  to[threadIdx.x] = shared[threadIdx.x];
}

TEST(Counting, OfAsyncCopiesIsBothMemories) {
  const Buffer<uint4> from(64);
  Buffer<uint4> to(64);
  const LaunchCounts counted =
      counts_of([&] { launch<async_kernel>(shape(1, 64, 1024), from.data(), to.data()); });
  EXPECT_EQ(counted.counts.of(Instruction::async_copy), 2);
  EXPECT_EQ(counted.counts.of(Instruction::load), 2) << "from shared memory";
  EXPECT_EQ(counted.counts.wavefronts, 2 * (4 + 4));
  EXPECT_EQ(counted.touched.read, 64 * 16) << "every sector has two rows, one of which at least is read";
  EXPECT_EQ(counted.chain.device_rounds, 0) << "a copy that runs by the side is not waited for at once";
}

// Every block reads the same numbers, and numbers of its own.
__global__ void shared_input_kernel(const float* common, const float* own, float* to) {
  float sum = own[thread()];
  for (int i = 0; i < 16; ++i) sum += common[i * 32 + lane()];
  to[thread()] = sum;
}

TEST(Counting, OfASampleIsExtrapolated) {
  constexpr int64_t kBlocks = 1000, kThreads = 64;
  const Buffer<float> common(512), own(kBlocks * kThreads);
  Buffer<float> to(kBlocks * kThreads);
  const auto launched = [&](double most_instructions) {
    return counts_of(
        [&] { launch<shared_input_kernel>(shape(kBlocks, kThreads), common.data(), own.data(), to.data()); },
        {most_instructions});
  };
  const LaunchCounts all = launched(1e9), sampled = launched(1000);
  EXPECT_FALSE(all.sampled());
  EXPECT_TRUE(sampled.sampled());
  EXPECT_EQ(sampled.counted_clusters, 16U);
  EXPECT_EQ(sampled.counts.of(Instruction::load), all.counts.of(Instruction::load));
  EXPECT_EQ(sampled.counts.sectors, all.counts.sectors);
  EXPECT_EQ(sampled.touched.read, all.touched.read);
  EXPECT_EQ(sampled.touched.written, all.touched.written);
  EXPECT_EQ(all.touched.read, 4 * (512 + kBlocks * kThreads));
  const double of_48_blocks =
      0.048 * std::reduce(all.counts.instructions.begin(), all.counts.instructions.end());
  const LaunchCounts larger = launched(of_48_blocks);
  EXPECT_EQ(larger.counted_clusters, 32U) << "64 would take more than it may";
  EXPECT_EQ(larger.counts.sectors, all.counts.sectors);
  EXPECT_EQ(larger.touched.read, all.touched.read);
  EXPECT_EQ(larger.touched.written, all.touched.written);
}

// Block (x, y) reads the y-th of eight operands, which are shared along x, and writes numbers of its own.
__global__ void operands_kernel(const float* operands, float* to) {
  float sum = 0;
  for (int i = 0; i < 256; ++i) sum += operands[(static_cast<int64_t>(blockIdx.y) * 256 + i) * 32 + lane()];
  to[(int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * 32 + lane()] = sum;
}

TEST(Counting, OfASampleTouchesNoMoreOfABufferThanThereIs) {
  constexpr int64_t kAlongX = 500, kOperands = 8, kNumbers = 256 * 32;
  const Buffer<float> operands(kOperands * kNumbers);
  Buffer<float> to(kAlongX * kOperands * 32);
  const LaunchCounts counted = counts_of(
      [&] {
        launch<operands_kernel>({extent(kAlongX, kOperands), extent(32), 0, nullptr}, operands.data(),
                                to.data());
      },
      {1000});
  EXPECT_TRUE(counted.sampled());
  EXPECT_LE(counted.touched.read, 4 * kOperands * kNumbers);
  EXPECT_GE(counted.touched.read, 4 * kOperands * kNumbers / 2);
  EXPECT_EQ(counted.touched.written, 4 * kAlongX * kOperands * 32);
}

// A block reads its neighbour's numbers between two barriers of the cluster.
__global__ void neighbour_kernel(float* to) {
  SharedMemory memory;
  float* const shared = memory.array<float>(64);
  shared[threadIdx.x] = to[thread()];
  cluster_arrive();
  cluster_wait();
  to[thread()] = map_shared(shared, 1 - cluster_rank())[threadIdx.x];
  cluster_arrive();
  cluster_wait();
}

TEST(Counting, OfAClusterIncludesOtherBlocksSharedMemory) {
  constexpr int64_t kBlocks = 6, kThreads = 64, kWarps = kBlocks * 2;
  Buffer<float> to(kBlocks * kThreads);
  const LaunchCounts counted = counts_of(
      [&] { launch<neighbour_kernel>(shape(kBlocks, kThreads, 256).in_clusters(extent(2)), to.data()); });
  EXPECT_EQ(count(counted.cluster), 2U);
  EXPECT_EQ(counted.counted_clusters, 3U);
  EXPECT_FALSE(counted.sampled());
  EXPECT_EQ(counted.counts.of(Instruction::cluster_barrier), 2 * kWarps);
  EXPECT_EQ(counted.chain.cluster_barriers, 2);
  EXPECT_EQ(counted.counts.shared_loads[kWidth4], kWarps);
  EXPECT_EQ(counted.counts.shared_stores[kWidth4], kWarps);
  EXPECT_EQ(counted.counts.wavefronts, 2 * kWarps);
}

// One thread has a kilobyte copied to shared memory; all wait for it.
__global__ void bulk_kernel(const float* from, float* to) {
  SharedMemory memory;
  float* const shared = memory.array<float>(256);
  uint64_t* const barrier = memory.array<uint64_t>(1);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_fence_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(barrier, 1024);
    bulk_load(shared, from, 1024, barrier);
  }
  mbarrier_wait(barrier, 0);
  for (int i = lane(); i < 256; i += 32) to[i] = shared[i];
}

TEST(Counting, OfABulkCopyIsOneInstructionAndAllItsBytes) {
  const Buffer<float> from(256);
  Buffer<float> to(256);
  const LaunchCounts counted =
      counts_of([&] { launch<bulk_kernel>(shape(1, 32, 2048), from.data(), to.data()); });
  EXPECT_EQ(counted.counts.of(Instruction::bulk_copy), 1);
  EXPECT_EQ(counted.counts.of(Instruction::mbarrier), 2) << "an arrival and a wait";
  EXPECT_EQ(counted.counts.bulk_bytes, 1024);
  EXPECT_EQ(counted.counts.sectors, 1024 / 32 + 1024 / 32) << "read by the copy, written by threads";
  EXPECT_EQ(counted.touched.read, 1024);
  EXPECT_EQ(counted.touched.written, 1024);
  EXPECT_EQ(counted.counts.wavefronts, 1024 / 128 + 8) << "filled, and read by eight loads of a warp";
  EXPECT_EQ(counted.chain.device_rounds, 0);
}

TEST(Counting, OfASampleLeavesNumbersInNewMemory) {
  const Counting counting({1000});
  EXPECT_EQ(download(Buffer<float>(8)), std::vector<float>(8, 0));
}

template <WindowReduction reduction, int steps, class T>
__global__ void named_kernel(T* to, int64_t count) {
  if (thread() < count) to[thread()] = T(reduction == WindowReduction::sum ? steps : 0);
}

TEST(Counting, NamesKernelsAsTheTableOfResourcesDoes) {
  Buffer<float> to(32);
  const auto name_of = [&](const auto& work) { return counts_of(work).kernel; };
  EXPECT_EQ(
      name_of([&] { launch<named_kernel<WindowReduction::sum, 8, float>>(shape(1, 32), to.data(), 32); }),
      "named_kernel<(WindowReduction)1, 8, float>");
  EXPECT_EQ(name_of([&] { launch<copy_kernel<float>>(shape(1, 32), to.data(), to.data()); }),
            "copy_kernel<float>");
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
