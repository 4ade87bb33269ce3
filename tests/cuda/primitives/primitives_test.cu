// Every primitive that the kernels use, against its specification in the CUDA documents. One source: run
// emulated everywhere, and natively on a GPU.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/async_copy.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/reference/core/float16.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class Primitives : public DeviceTest {};

constexpr unsigned kAll = 0xffffffff;
constexpr int kLanes = 32;

LaunchShape one_warp(int64_t shared = 0, CallSite where = CallSite::current()) {
  return LaunchShape(extent(1), extent(kLanes), shared, nullptr, where);
}

std::vector<int> iota(int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Indices.

__global__ void indices_kernel(int* numbers) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  numbers[block * threads + thread] = static_cast<int>(block * threads + thread);
}

TEST_F(Primitives, EveryThreadOfEveryBlockRunsOnce) {
  under_every_schedule([] {
    Buffer<int> numbers(2 * 3 * 4 * 64);
    launch<indices_kernel>(LaunchShape(extent(2, 3, 4), extent(8, 4, 2), 0, nullptr), numbers.data());
    EXPECT_EQ(download(numbers), iota(2 * 3 * 4 * 64));
  });
}

// Shuffles and votes.

constexpr int kShuffles = 6;

__global__ void shuffle_kernel(int* numbers) {
  const int lane = static_cast<int>(threadIdx.x);
  int* const mine = numbers + lane * kShuffles;
  mine[0] = __shfl_sync(kAll, lane, 31 - lane);
  mine[1] = __shfl_sync(kAll, lane, 5, 8);
  mine[2] = __shfl_up_sync(kAll, lane, 3);
  mine[3] = __shfl_up_sync(kAll, lane, 3, 8);
  mine[4] = __shfl_xor_sync(kAll, lane, 21);
  mine[5] = __shfl_xor_sync(kAll, lane, 12, 8);
}

TEST_F(Primitives, ShufflesReadTheLaneThatTheyName) {
  under_every_schedule([] {
    Buffer<int> numbers(kLanes * kShuffles);
    launch<shuffle_kernel>(one_warp(), numbers.data());
    const std::vector<int> found = download(numbers);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int within = lane % 8;
      const int* const mine = &found[lane * kShuffles];
      EXPECT_EQ(mine[0], 31 - lane);
      EXPECT_EQ(mine[1], lane - within + 5);
      EXPECT_EQ(mine[2], lane < 3 ? lane : lane - 3);
      EXPECT_EQ(mine[3], within < 3 ? lane : lane - 3);
      EXPECT_EQ(mine[4], lane ^ 21);
      // In parts of 8 lanes xor 12 names a lane of another part: an earlier part is read, a later one
      // gives the lane's own number.
      EXPECT_EQ(mine[5], lane % 16 >= 8 ? lane ^ 12 : lane);
    }
  });
}

template <class T>
__global__ void reduction_kernel(T* sums) {
  T sum = static_cast<T>(threadIdx.x) + static_cast<T>(1) / static_cast<T>(2);
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAll, sum, distance);
  sums[threadIdx.x] = sum;
}

TEST_F(Primitives, ShufflesCarryEveryTypeOf32And64Bits) {
  under_every_schedule([] {
    const auto sums_of = [](auto zero) {
      Buffer<decltype(zero)> sums(kLanes);
      launch<reduction_kernel<decltype(zero)>>(one_warp(), sums.data());
      return download(sums);
    };
    EXPECT_EQ(sums_of(0), std::vector<int>(kLanes, 496));
    EXPECT_EQ(sums_of(0U), std::vector<unsigned>(kLanes, 496));
    EXPECT_EQ(sums_of(0LL), std::vector<long long>(kLanes, 496));
    EXPECT_EQ(sums_of(0ULL), std::vector<unsigned long long>(kLanes, 496));
    EXPECT_EQ(sums_of(0.0F), std::vector<float>(kLanes, 512));
    EXPECT_EQ(sums_of(0.0), std::vector<double>(kLanes, 512));
  });
}

__global__ void reduce_kernel(int* signed_sums, unsigned* sums) {
  const auto lane = static_cast<int>(threadIdx.x);
  signed_sums[lane] = __reduce_add_sync(kAll, lane - 16);
  if (lane >= 16) sums[lane] = __reduce_add_sync(0xffff0000U, 0xffffff00U + threadIdx.x);
}

TEST_F(Primitives, OneInstructionAddsTheIntegersOfAllLanesInTheMask) {
  under_every_schedule([] {
    Buffer<int> signed_sums(kLanes);
    Buffer<unsigned> sums = upload(std::vector<unsigned>(kLanes, 5));
    launch<reduce_kernel>(one_warp(), signed_sums.data(), sums.data());
    EXPECT_EQ(download(signed_sums), std::vector<int>(kLanes, -16));
    std::vector<unsigned> expected(kLanes, 5);  // modulo 2^32
    std::fill(expected.begin() + 16, expected.end(), static_cast<unsigned>(376 - 16 * 256));
    EXPECT_EQ(download(sums), expected);
  });
}

__global__ void halves_kernel(int* sums) {
  const int lane = static_cast<int>(threadIdx.x);
  int sum = lane;
  if (lane < 16) {
    for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(0x0000ffffU, sum, distance);
  } else {
    for (int distance = 8; distance > 2; distance /= 2) sum += __shfl_xor_sync(0xffff0000U, sum, distance);
  }
  sums[lane] = sum;
}

TEST_F(Primitives, PartsOfAWarpTakeStepsOfTheirOwn) {
  under_every_schedule([] {
    Buffer<int> sums(kLanes);
    launch<halves_kernel>(one_warp(), sums.data());
    const std::vector<int> found = download(sums);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int pair = 4 * (16 + lane % 4) + (0 + 4 + 8 + 12);  // lanes 16 + lane % 4, 20 + lane % 4, ...
      EXPECT_EQ(found[lane], lane < 16 ? 120 : pair);
    }
  });
}

__global__ void vote_kernel(unsigned* votes) {
  const int lane = static_cast<int>(threadIdx.x);
  unsigned* const mine = votes + lane * 4;
  mine[0] = __ballot_sync(kAll, lane % 3 == 0);
  mine[1] = static_cast<unsigned>(__any_sync(kAll, lane == 17));
  mine[2] = static_cast<unsigned>(__any_sync(kAll, lane == 32));
  mine[3] = lane < 8 ? __ballot_sync(0xffU, lane & 1) : 0;
}

TEST_F(Primitives, VotesCountEveryLaneOfTheMask) {
  under_every_schedule([] {
    Buffer<unsigned> votes(kLanes * 4);
    launch<vote_kernel>(one_warp(), votes.data());
    const std::vector<unsigned> found = download(votes);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const std::vector<unsigned> mine(&found[lane * 4], &found[lane * 4] + 4);
      EXPECT_EQ(mine, (std::vector<unsigned>{0x49249249, 1, 0, lane < 8 ? 0xaaU : 0U}));
    }
  });
}

// Barriers and shared memory.

struct Rotation {
  int* numbers;
  float* unused;

  __host__ __device__ Rotation(SharedMemory& shared, int64_t threads)
      : numbers(shared.array<int>(threads)), unused(shared.array<float>(3, 128)) {}
};

__global__ void rotation_kernel(int* numbers, int rounds) {
  SharedMemory memory;
  const Rotation shared(memory, blockDim.x);
  int mine = static_cast<int>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    shared.numbers[threadIdx.x] = mine;
    __syncthreads();
    mine = shared.numbers[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
  }
  numbers[blockIdx.x * blockDim.x + threadIdx.x] = mine;
}

TEST_F(Primitives, ABarrierShowsEverybodyWhatWasWrittenBefore) {
  constexpr int kThreads = 256;
  constexpr int kRounds = 5;
  under_every_schedule([] {
    Buffer<int> numbers(3 * kThreads);
    launch<rotation_kernel>(
        LaunchShape(extent(3), extent(kThreads), shared_bytes<Rotation>(kThreads), nullptr), numbers.data(),
        kRounds);
    const std::vector<int> found = download(numbers);
    for (int i = 0; i < 3 * kThreads; ++i) EXPECT_EQ(found[i], (i % kThreads + kRounds) % kThreads);
  });
}

TEST_F(Primitives, ALayoutsSizeIsItsArraysAndWhatAligningThemCosts) {
  EXPECT_EQ(shared_bytes<Rotation>(1), 128 + 12);
  EXPECT_EQ(shared_bytes<Rotation>(32), 128 + 12);
  EXPECT_EQ(shared_bytes<Rotation>(33), 256 + 12);
}

__global__ void counting_kernel(int* counts) {
  const int thread = static_cast<int>(threadIdx.x);
  counts[thread * 3] = __syncthreads_count(thread % 3 == 0);
  counts[thread * 3 + 1] = __syncthreads_or(thread == 40) != 0;
  counts[thread * 3 + 2] = __syncthreads_or(thread == 64) != 0;
}

TEST_F(Primitives, BarriersCountFlagsOfTheWholeBlock) {
  under_every_schedule([] {
    Buffer<int> counts(64 * 3);
    launch<counting_kernel>(LaunchShape(extent(1), extent(64), 0, nullptr), counts.data());
    const std::vector<int> found = download(counts);
    for (size_t thread = 0; thread < 64; ++thread) {
      EXPECT_EQ(std::vector<int>(&found[thread * 3], &found[thread * 3] + 3), (std::vector<int>{22, 1, 0}));
    }
  });
}

__global__ void exchange_in_warp_kernel(int* numbers) {
  SharedMemory memory;
  int* const shared = memory.array<int>(blockDim.x);
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncwarp();
  numbers[threadIdx.x] = shared[threadIdx.x ^ 31];
}

TEST_F(Primitives, AWarpsBarrierShowsItsLanesWhatWasWrittenBefore) {
  under_every_schedule([] {
    Buffer<int> numbers(96);
    launch<exchange_in_warp_kernel>(LaunchShape(extent(1), extent(96), 96 * 4, nullptr), numbers.data());
    const std::vector<int> found = download(numbers);
    for (int i = 0; i < 96; ++i) EXPECT_EQ(found[i], i ^ 31);
  });
}

__global__ void much_shared_memory_kernel(int64_t bytes, int* sum) {
  SharedMemory memory;
  unsigned char* const shared = memory.array<unsigned char>(bytes);
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) shared[i] = static_cast<unsigned char>(i % 251);
  __syncthreads();
  int mine = 0;
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) mine += shared[bytes - 1 - i];
  atomicAdd(sum, mine);
}

TEST_F(Primitives, ABlockMayHaveAllTheSharedMemoryThereIs) {
  const int64_t bytes = device().shared_memory_per_block;
  EXPECT_GT(bytes, 48 * 1024);
  int expected = 0;
  for (int64_t i = 0; i < bytes; ++i) expected += static_cast<int>(i % 251);
  Buffer<int> sum(1);
  sum.clear();
  launch<much_shared_memory_kernel>(LaunchShape(extent(1), extent(128), bytes, nullptr), bytes, sum.data());
  EXPECT_EQ(download(sum)[0], expected);
  EXPECT_THROW(launch<much_shared_memory_kernel>(LaunchShape(extent(1), extent(128), bytes + 1, nullptr),
                                                 bytes, sum.data()),
               DeviceError);
}

TEST_F(Primitives, NoGridIsLongerThanADeviceTakes) {
  EXPECT_EQ(extent(2147483647, 65535, 65535).z, 65535U);
  EXPECT_THROW(extent(int64_t{1} << 31), ShapeMismatch);
  EXPECT_THROW(extent(1, 65536), ShapeMismatch);
  EXPECT_THROW(extent(1, 1, 65536), ShapeMismatch);
  EXPECT_THROW(extent(1, -1), ShapeMismatch);
}

// Rows that a grid has no room for along y go on along z.

__global__ void count_rows_kernel(int64_t rows, int* blocks) {
  const int64_t row = row_of_block();
  if (row < rows) atomicAdd(blocks + row, 1);
}

TEST_F(Primitives, AGridHasBlocksForEveryRowWhateverTheirNumber) {
  for (const int64_t rows : {1, 65535, 65536, 131071}) {
    const dim3 grid = extent_of_rows(2, rows);
    EXPECT_LT(int64_t{grid.y} * grid.z, rows + grid.z) << "less than a block of each along z is left over";
    Buffer<int> blocks = upload(std::vector<int>(rows, 0));
    launch<count_rows_kernel>(LaunchShape(grid, extent(1), 0, nullptr), rows, blocks.data());
    EXPECT_EQ(download(blocks), std::vector<int>(rows, 2));
  }
  EXPECT_EQ(extent_of_rows(2, 0).y, 0U);
}

// Atomics.

template <class T>
__global__ void tickets_kernel(T* count, T* seen) {
  seen[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(count, 1);
}

template <class T>
void check_atomics() {
  under_every_schedule([] {
    constexpr int kThreads = 4 * 64;
    Buffer<T> count = upload(std::vector<T>{0});
    Buffer<T> seen(kThreads);
    launch<tickets_kernel<T>>(LaunchShape(extent(4), extent(64), 0, nullptr), count.data(), seen.data());
    EXPECT_EQ(download(count)[0], T{kThreads});
    std::vector<T> tickets = download(seen);
    std::sort(tickets.begin(), tickets.end());
    for (size_t i = 0; i < kThreads; ++i)
      EXPECT_EQ(tickets[i], static_cast<T>(i)) << "every ticket goes out once";
  });
}

TEST_F(Primitives, AtomicsLoseNothing) {
  check_atomics<int>();
  check_atomics<unsigned>();
  check_atomics<unsigned long long>();
}

__global__ void histogram_kernel(const int* values, int count, int* counts) {
  SharedMemory memory;
  int* const shared = memory.array<int>(16);
  if (threadIdx.x < 16) shared[threadIdx.x] = 0;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(count); i += blockDim.x)
    atomicAdd(&shared[values[i]], 1);
  __syncthreads();
  if (threadIdx.x < 16) counts[threadIdx.x] = shared[threadIdx.x];
}

TEST_F(Primitives, AtomicsWorkInSharedMemory) {
  std::vector<int> values(1000);
  std::vector<int> expected(16);
  for (size_t i = 0; i < values.size(); ++i) ++expected[values[i] = static_cast<int>(i * i % 16)];
  const Buffer<int> input = upload(values);
  under_every_schedule([&] {
    Buffer<int> counts(16);
    launch<histogram_kernel>(LaunchShape(extent(1), extent(64), 64, nullptr), input.data(), 1000,
                             counts.data());
    EXPECT_EQ(download(counts), expected);
  });
}

__global__ void last_block_kernel(const float* numbers, float* partial, int* blocks_done, float* total) {
  SharedMemory memory;
  int* const is_last = memory.array<int>(1);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = numbers[blockIdx.x];
    __threadfence();
    *is_last = atomicAdd(blocks_done, 1) == static_cast<int>(gridDim.x) - 1;
  }
  __syncthreads();
  if (*is_last == 0 || threadIdx.x != 0) return;
  __threadfence();
  float sum = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) sum += partial[block];
  *total = sum;
}

TEST_F(Primitives, TheLastBlockSeesWhatTheOthersWrote) {
  std::vector<float> numbers(100);
  std::iota(numbers.begin(), numbers.end(), 1.0F);
  const Buffer<float> input = upload(numbers);
  under_every_schedule([&] {
    Buffer<float> partial(100);
    Buffer<int> done(1);
    Buffer<float> total(1);
    done.clear();
    launch<last_block_kernel>(LaunchShape(extent(100), extent(kLanes), 16, nullptr), input.data(),
                              partial.data(), done.data(), total.data());
    EXPECT_EQ(download(total)[0], 5050.0F);
  });
}

// Bits and numbers.

__global__ void bits_kernel(int* numbers, float nan) {
  numbers[0] = __popc(0xf0f1U);
  numbers[1] = __ffs(0x50);
  numbers[2] = __ffs(0);
  numbers[3] = __float_as_uint(-1.0F) == 0xbf800000U;
  numbers[4] = __uint_as_float(0x40400000U) == 3.0F;
  numbers[5] = min(-1, 1);
  numbers[6] = static_cast<int>(max(7U, 9U));
  numbers[7] = min(nan, 2.0F) == 2.0F && max(2.0F, nan) == 2.0F;
  numbers[8] = __float_as_uint(fmaf(2.0F, 3.0F, 1.0F)) == __float_as_uint(7.0F);
  numbers[9] = expf(0.0F) == 1.0F && expf(-INFINITY) == 0.0F && logf(1.0F) == 0.0F;
}

TEST_F(Primitives, BitsAndNumbersAreAsInCuda) {
  Buffer<int> numbers(10);
  launch<bits_kernel>(LaunchShape(extent(1), extent(1), 0, nullptr), numbers.data(),
                      std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(download(numbers), (std::vector<int>{9, 5, 0, 1, 1, -1, 9, 1, 1, 1}));
}

template <Storage T>
__global__ void widen_kernel(float* numbers) {
  const unsigned bits = blockIdx.x * blockDim.x + threadIdx.x;
  numbers[bits] = to_float(T{static_cast<uint16_t>(bits)});
}

template <Storage T, class Convert>
void check_widening(const Convert& expected) {
  Buffer<float> numbers(65536);
  launch<widen_kernel<T>>(LaunchShape(extent(256), extent(256), 0, nullptr), numbers.data());
  const std::vector<float> found = download(numbers);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto number = static_cast<double>(found[bits]);
    const double exact = expected(static_cast<uint16_t>(bits));
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(number)) << bits;
    } else {
      EXPECT_EQ(number, exact) << bits;
      EXPECT_EQ(std::signbit(number), std::signbit(exact)) << bits;
    }
  }
}

TEST_F(Primitives, WideningIsExactForEveryNumberThereIs) {
  check_widening<Float16>([](uint16_t bits) { return from_float16(bits); });
  check_widening<Bfloat16>([](uint16_t bits) { return from_bfloat16(bits); });
}

template <Storage T>
__global__ void load_kernel(const T* numbers, float* loaded) {
  const Vector<T> vector = load16(numbers + kVector<T> * threadIdx.x);
  for (int64_t i = 0; i < kVector<T>; ++i) loaded[kVector<T> * threadIdx.x + i] = vector.values[i];
}

TEST_F(Primitives, ALoadGivesTheNumbersInTheirOrder) {
  std::vector<float> expected(8 * kLanes);
  std::vector<Float16> halves(expected.size());
  std::vector<Bfloat16> brains(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = static_cast<float>(i) - 100;
    halves[i].bits = to_float16(expected[i]);
    brains[i].bits = to_bfloat16(expected[i]);
  }
  const auto check = [&](const auto& stored) {
    using T = typename std::decay_t<decltype(stored)>::value_type;
    const Buffer<T> input = upload(stored);
    Buffer<float> loaded(input.size());
    launch<load_kernel<T>>(LaunchShape(extent(1), extent(input.size() / kVector<T>), 0, nullptr),
                           input.data(), loaded.data());
    EXPECT_EQ(download(loaded), expected);
  };
  check(expected);
  check(halves);
  check(brains);
}

// Async copies.

// Two buffers: while one is read, the other is filled.
__global__ void pipeline_kernel(const int* numbers, int stages, int last_bytes, int* sums) {
  SharedMemory memory;
  int* const shared = memory.array<int>(2 * 4 * blockDim.x);
  const auto issue = [&](int stage) {
    int* const to = shared + (stage % 2 * blockDim.x + threadIdx.x) * 4;
    const int* const from = numbers + (static_cast<unsigned>(stage) * blockDim.x + threadIdx.x) * 4;
    if (stage < stages) async_copy16(to, from, stage == stages - 1 ? last_bytes : 16);
    async_commit();
  };
  issue(0);
  for (int stage = 0; stage < stages; ++stage) {
    issue(stage + 1);
    async_wait<1>();
    __syncthreads();
    // The numbers that the neighbouring thread has copied.
    const int* const read = shared + (stage % 2 * blockDim.x + (threadIdx.x + 1) % blockDim.x) * 4;
    sums[static_cast<unsigned>(stage) * blockDim.x + threadIdx.x] = read[0] + read[1] + read[2] + read[3];
    __syncthreads();
  }
  async_wait<0>();
}

TEST_F(Primitives, AsyncCopiesLandBeforeTheirGroupHasBeenWaitedFor) {
  constexpr int kStages = 7;
  constexpr int kThreads = 64;
  const Buffer<int> input = upload(iota(kStages * kThreads * 4));
  under_every_schedule([&] {
    for (const int last_bytes : {16, 8, 4, 0}) {
      Buffer<int> sums(kStages * kThreads);
      launch<pipeline_kernel>(LaunchShape(extent(1), extent(kThreads), 2 * 16 * kThreads, nullptr),
                              input.data(), kStages, last_bytes, sums.data());
      const std::vector<int> found = download(sums);
      for (int i = 0; i < kStages * kThreads; ++i) {
        const int stage = i / kThreads;
        const int first = 4 * (stage * kThreads + (i + 1) % kThreads);
        const int there = stage == kStages - 1 ? last_bytes / 4 : 4;  // the rest of the last stage is zero
        EXPECT_EQ(found[i], there * first + there * (there - 1) / 2);
      }
    }
  });
}

// Errors.

__global__ void nothing_kernel() {}

TEST_F(Primitives, WhatNoDeviceAcceptsIsRefused) {
  EXPECT_THROW(launch<nothing_kernel>(LaunchShape(extent(0), extent(32), 0, nullptr)), DeviceError);
  EXPECT_THROW(launch<nothing_kernel>(LaunchShape(extent(1), extent(1025), 0, nullptr)), DeviceError);
  EXPECT_THROW(launch<nothing_kernel>(LaunchShape(dim3(1, 70000), extent(32), 0, nullptr)), DeviceError);
  EXPECT_THROW(extent(-1), ShapeMismatch);
  EXPECT_THROW(extent(int64_t{1} << 32), ShapeMismatch);
  EXPECT_NO_THROW(launch<nothing_kernel>(one_warp())) << "an error is not the next launch's";
}

TEST_F(Primitives, AnErrorNamesTheLaunch) {
  try {
    launch<nothing_kernel>(LaunchShape(extent(0), extent(32), 0, nullptr));
    FAIL() << "nothing was thrown";
  } catch (const DeviceError& error) {
    const std::string place = "primitives_test.cu:" + std::to_string(__LINE__ - 3);
    EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
  }
}

TEST_F(Primitives, BuffersKeepWhatTheyAreGiven) {
  Buffer<int> buffer = upload(iota(1000));
  EXPECT_EQ(download(buffer), iota(1000));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0U);
  buffer.upload(std::vector<int>{-1, -2}, nullptr, 998);
  std::vector<int> tail(3);
  buffer.download(tail, nullptr, 997);
  EXPECT_EQ(tail, (std::vector<int>{997, -1, -2}));
  buffer.clear();
  EXPECT_EQ(download(buffer), std::vector<int>(1000, 0));
  EXPECT_THROW(buffer.download(tail, nullptr, 998), ShapeMismatch);
  const Buffer<int> moved = std::move(buffer);
  EXPECT_EQ(moved.size(), 1000);
  EXPECT_EQ(Buffer<int>(0).data(), nullptr);
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
