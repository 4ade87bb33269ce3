// The emulation reports faulty kernels: each kernel here has one fault, which must be reported with its
// source line where one line is to blame.
#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include <kvbound/cuda/emulation/sanitizer.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/cuda/support/view.hpp>

#include "support/device_test.hpp"
#include "support/emulation_faults.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using emulation::Schedule;
using emulation::ScopedSchedule;

constexpr unsigned kAll = 0xffffffff;

std::string here(int line) { return "emulation_test.cu:" + std::to_string(line); }

const std::vector<Schedule> kSchedules{{0, false}, {1, false}, {2, false}, {3, false}};

/// The seeds of the schedules under which `right` returns false.
std::set<uint64_t> seeds_that_show(const std::function<bool()>& right) {
  std::set<uint64_t> seeds;
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    if (!right()) seeds.insert(schedule.seed);
  }
  return seeds;
}

// A missing barrier.

// Every thread reads the number of the thread `distance` places further on, without waiting for
// that thread to write it.
__global__ void missing_barrier_kernel(unsigned distance, float* numbers) {
  SharedMemory memory;
  float* const shared = memory.array<float>(blockDim.x);
  shared[threadIdx.x] = 1;
  numbers[threadIdx.x] = shared[(threadIdx.x + distance) % blockDim.x];
}

TEST(Emulation, AMissingBarrierShowsInAResult) {
  const auto right = [](unsigned distance) {
    Buffer<float> numbers(64);
    launch<missing_barrier_kernel>(shape(1, 64, 256), distance, numbers.data());
    return download(numbers) == std::vector<float>(64, 1.0F);
  };
  for (const unsigned distance : {1U, 31U, 32U, 33U, 63U}) {
    EXPECT_EQ(seeds_that_show([&] { return right(distance); }).size(), kSchedules.size()) << distance;
  }
  EXPECT_TRUE(right(0));
}

// Only thread 0 writes and only the last thread reads: right if threads run in ascending order,
// wrong in descending order.
__global__ void lucky_order_kernel(bool first_writes, float* number) {
  SharedMemory memory;
  float* const shared = memory.array<float>(1);
  const unsigned writer = first_writes ? 0 : blockDim.x - 1;
  const unsigned reader = first_writes ? blockDim.x - 1 : 0;
  if (threadIdx.x == writer) *shared = 1;
  if (threadIdx.x == reader) *number = *shared;
}

TEST(Emulation, OfSchedules0And1OneShowsAMissingBarrierBetweenAnyTwoThreads) {
  const auto right = [](bool first_writes) {
    Buffer<float> number(1);
    launch<lucky_order_kernel>(shape(1, 128, 4), first_writes, number.data());
    return download(number)[0] == 1.0F;
  };
  EXPECT_TRUE(seeds_that_show([&] { return right(true); }).contains(1));
  EXPECT_TRUE(seeds_that_show([&] { return right(false); }).contains(0));
}

// The buffer is written again while others may still read it: a barrier is missing at the loop's end.
__global__ void reused_array_kernel(int rounds, int* wrong) {
  SharedMemory memory;
  int* const shared = memory.array<int>(blockDim.x);
  for (int round = 0; round < rounds; ++round) {
    shared[threadIdx.x] = round;
    __syncthreads();
    if (shared[(threadIdx.x + blockDim.x / 2) % blockDim.x] != round) atomicAdd(wrong, 1);
  }
}

TEST(Emulation, AnArrayThatIsReusedTooEarlyShowsInAResult) {
  const auto right = [] {
    Buffer<int> wrong(1);
    wrong.clear();
    launch<reused_array_kernel>(shape(1, 128, 512), 8, wrong.data());
    return download(wrong)[0] == 0;
  };
  EXPECT_EQ(seeds_that_show(right).size(), kSchedules.size());
}

// Without __syncwarp a lane does not see what another one has written.
__global__ void missing_warp_barrier_kernel(float* numbers) {
  SharedMemory memory;
  float* const shared = memory.array<float>(32);
  shared[threadIdx.x] = 1;
  numbers[threadIdx.x] = shared[31 - threadIdx.x];
}

TEST(Emulation, LanesAreNotInStep) {
  const auto right = [] {
    Buffer<float> numbers(32);
    launch<missing_warp_barrier_kernel>(shape(1, 32, 128), numbers.data());
    return download(numbers) == std::vector<float>(32, 1.0F);
  };
  EXPECT_EQ(seeds_that_show(right).size(), kSchedules.size());
}

__global__ void uninitialised_kernel(float* numbers) {
  SharedMemory memory;
  float* const shared = memory.array<float>(1);
  numbers[blockIdx.x] = *shared;
  *shared = 7;  // must not be visible to the next block
}

TEST(Emulation, MemoryThatWasNeverWrittenIsNan) {
  Buffer<float> numbers(8);
  for (const float number : download(numbers)) EXPECT_TRUE(std::isnan(number)) << "device memory";
  launch<uninitialised_kernel>(shape(8, 1, 4), numbers.data());
  for (const float number : download(numbers))
    EXPECT_TRUE(std::isnan(number)) << "shared memory, of every block anew";
}

// Barriers that not all threads reach.

constexpr int kTwoBarriers = __LINE__ + 4;
__global__ void divergent_barrier_kernel() {
  if (threadIdx.x < 32) {
    // One half of the block waits here,
    __syncthreads();
  } else {
    __syncthreads();  // the other half here.
  }
}

TEST(Emulation, ADivergentBarrierIsReportedWithBothPlaces) {
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    const std::string fault = fault_of([] { launch<divergent_barrier_kernel>(shape(1, 64)); });
    expect_words(fault,
                 {"__syncthreads", here(kTwoBarriers), here(kTwoBarriers + 2), "block (0,0,0)", "thread ("});
  }
}

constexpr int kEarlyBarrier = __LINE__ + 3;
__global__ void early_return_kernel(unsigned stay) {
  if (threadIdx.x >= stay) return;
  __syncthreads();
}

TEST(Emulation, ABarrierThatAReturnedThreadMissesIsReported) {
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    const std::string fault = fault_of([] { launch<early_return_kernel>(shape(3, 96), 95U); });
    expect_words(fault, {"return", "__syncthreads", here(kEarlyBarrier)});
  }
  EXPECT_EQ(fault_of([] { launch<early_return_kernel>(shape(3, 96), 96U); }), "");
}

constexpr int kLoopBarrier = __LINE__ + 3;
__global__ void uneven_loop_kernel() {
  for (unsigned i = 0; i <= threadIdx.x / 32; ++i) {
    __syncthreads();
  }
}

TEST(Emulation, ALoopThatEndsEarlierForSomeThreadsIsReported) {
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    expect_words(fault_of([] { launch<uneven_loop_kernel>(shape(1, 64)); }), {"return", here(kLoopBarrier)});
  }
}

constexpr int kDeadlock = __LINE__ + 3;
__global__ void deadlock_kernel(int* numbers) {
  // Half of each warp waits for the block, the other half for the whole warp.
  if (threadIdx.x % 2 == 0) __syncthreads();
  numbers[threadIdx.x] = __shfl_sync(kAll, 1, 0);
}

TEST(Emulation, ADeadlockIsReportedWithEveryPlaceWhereThreadsWait) {
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    Buffer<int> numbers(64);
    const std::string fault = fault_of([&] { launch<deadlock_kernel>(shape(1, 64), numbers.data()); });
    expect_words(
        fault, {"no thread can go on", "32 from thread (0,0,0) on wait at __syncthreads at ", here(kDeadlock),
                "32 from thread (1,0,0) on wait at __shfl_sync of mask 0xffffffff at ", here(kDeadlock + 1),
                "0 have returned"});
  }
}

// Steps of a warp.

constexpr int kOutsideMask = __LINE__ + 3;
__global__ void outside_mask_kernel(int source, int* numbers) {
  if (threadIdx.x < 16) {
    numbers[threadIdx.x] = __shfl_sync(0x0000ffffU, static_cast<int>(threadIdx.x), source);
  }
}

TEST(Emulation, AShuffleFromALaneOutsideItsMaskIsReported) {
  Buffer<int> numbers(32);
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    EXPECT_EQ(fault_of([&] { launch<outside_mask_kernel>(shape(1, 32), 15, numbers.data()); }), "");
    expect_words(fault_of([&] { launch<outside_mask_kernel>(shape(1, 32), 16, numbers.data()); }),
                 {"__shfl_sync", "reads lane 16 outside the mask", here(kOutsideMask)});
  }
}

__global__ void not_in_mask_kernel() { __syncwarp(0x7fffffffU); }

__global__ void lost_lane_kernel() {
  if (threadIdx.x == 5) return;
  __syncwarp();
}

__global__ void two_places_kernel(int* numbers) {
  if (threadIdx.x < 16) {
    numbers[threadIdx.x] = __shfl_xor_sync(kAll, 1, 1);
  } else {
    numbers[threadIdx.x] = __shfl_xor_sync(kAll, 1, 1);
  }
}

__global__ void two_masks_kernel() {
  if (threadIdx.x < 16) {
    __syncwarp(0x0001ffffU);
  } else {
    __syncwarp(0xffff0000U);
  }
}

TEST(Emulation, StepsThatTheLanesDoNotTakeTogetherAreReported) {
  Buffer<int> numbers(32);
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    expect_words(fault_of([] { launch<not_in_mask_kernel>(shape(1, 32)); }),
                 {"thread (31,0,0)", "__syncwarp of mask 0x7fffffff", "in which it is not"});
    expect_words(fault_of([] { launch<lost_lane_kernel>(shape(1, 32)); }), {"__syncwarp", "return"});
    expect_words(fault_of([] { launch<lost_lane_kernel>(shape(1, 16)); }), {"__syncwarp", "never was"});
    expect_words(fault_of([&] { launch<two_places_kernel>(shape(1, 32), numbers.data()); }),
                 {"__shfl_xor_sync", ", but thread ("});
    expect_words(fault_of([] { launch<two_masks_kernel>(shape(1, 32)); }), {"__syncwarp of mask 0x0001ffff"});
  }
}

__global__ void partial_mma_kernel(float* numbers) {
  float c[4] = {};
  const uint32_t a[4] = {};
  const uint32_t b[2] = {};
  if (threadIdx.x != 7) mma_m16n8k16<Bfloat16>(c, a, b);
  numbers[threadIdx.x] = c[0];
}

__global__ void partial_ldmatrix_kernel(float* numbers) {
  SharedMemory memory;
  Bfloat16* const shared = memory.array<Bfloat16>(256);
  uint32_t fragment[4] = {};
  if (threadIdx.x < 16) ldmatrix_x4(fragment, shared + 8 * threadIdx.x);
  numbers[threadIdx.x] = __uint_as_float(fragment[0]);
}

TEST(Emulation, TensorCoresWantTheWholeWarp) {
  Buffer<float> numbers(32);
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    expect_words(fault_of([&] { launch<partial_mma_kernel>(shape(1, 32), numbers.data()); }),
                 {"mma", "return"});
    expect_words(fault_of([&] { launch<partial_ldmatrix_kernel>(shape(1, 32, 512), numbers.data()); }),
                 {"ldmatrix", "return"});
  }
}

__global__ void misaligned_ldmatrix_kernel(int64_t offset) {
  SharedMemory memory;
  Bfloat16* const shared = memory.array<Bfloat16>(264);
  uint32_t fragment[4];
  ldmatrix_x4(fragment, shared + 8 * threadIdx.x + offset);
}

TEST(Emulation, LdmatrixReadsAlignedRowsOfSharedMemory) {
  EXPECT_EQ(fault_of([] { launch<misaligned_ldmatrix_kernel>(shape(1, 32, 528), 8); }), "");
  expect_words(fault_of([] { launch<misaligned_ldmatrix_kernel>(shape(1, 32, 528), 4); }),
               {"ldmatrix", "misaligned"});
  expect_words(fault_of([] { launch<misaligned_ldmatrix_kernel>(shape(1, 32, 528), 16); }),
               {"ldmatrix", "past the end of shared array 0 of 528 bytes"});
}

// Device memory.

__global__ void write_kernel(int64_t index, float* numbers) {
  if (blockIdx.x == 2 && threadIdx.x == 3) numbers[index] = 1;
}

__global__ void read_kernel(int64_t index, const float* numbers, float* number) {
  if (blockIdx.x == 2 && threadIdx.x == 3) *number = numbers[index];
}

TEST(Emulation, AnAccessFarOutsideABufferNamesThreadAndBuffer) {
  Buffer<float> numbers(100);
  Buffer<float> number(1);
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    // 400 bytes are followed by 112 bytes of canaries, so index 128 is the first beyond them.
    for (const int64_t index : {128, 1000}) {
      const std::vector<std::string> words{
          "block (2,0,0), thread (3,0,0)", "accesses ",
          std::to_string(4 * index - 400) + " bytes past the end of a buffer of 400 bytes",
          "emulation_test.cu:"};
      expect_words(fault_of([&] { launch<write_kernel>(shape(4, 32), index, numbers.data()); }), words);
      expect_words(fault_of([&] { launch<read_kernel>(shape(4, 32), index, numbers.data(), number.data()); }),
                   words);
    }
    expect_words(fault_of([&] { launch<write_kernel>(shape(4, 32), -1100, numbers.data()); }),
                 {"4400 bytes before the begin of a buffer of 400 bytes"});
  }
  float* const unowned = reinterpret_cast<float*>(uintptr_t{64});
  expect_words(fault_of([&] { launch<write_kernel>(shape(4, 32), 0, unowned); }),
               {"far from all device memory"});
  EXPECT_EQ(fault_of([&] { launch<write_kernel>(shape(4, 32), 99, numbers.data()); }), "");
  EXPECT_EQ(download(numbers)[99], 1.0F);
}

// Under AddressSanitizer a stray access ends the program with the sanitizer's own report.
void expect_stray(const std::function<void()>& launches, const std::vector<std::string>& words) {
  if constexpr (emulation::kAddressSanitizer) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(launches(), "use-after-poison");
  } else {
    expect_words(fault_of(launches), words);
  }
}

TEST(Emulation, AWriteJustOutsideABufferIsFoundAfterTheKernel) {
  Buffer<float> numbers(101);
  expect_stray([&] { launch<write_kernel>(shape(4, 32), 101, numbers.data()); },
               {"something was written 0 bytes past the end of a buffer of 404 bytes"});
  expect_stray([&] { launch<write_kernel>(shape(4, 32), 127, numbers.data()); },
               {"something was written 104 bytes past the end of a buffer of 404 bytes"});
  expect_stray([&] { launch<write_kernel>(shape(4, 32), -1, numbers.data()); },
               {"something was written 4 bytes before the begin of a buffer of 404 bytes"});
  EXPECT_EQ(fault_of([&] { launch<write_kernel>(shape(4, 32), 0, numbers.data()); }), "")
      << "it is reported once";
}

TEST(Emulation, AReadJustOutsideABufferIsNan) {
  Buffer<float> numbers = upload(std::vector<float>(101));
  Buffer<float> number(1);
  for (const int64_t index : {-1, 101, 127}) {
    const auto read = [&] { launch<read_kernel>(shape(4, 32), index, numbers.data(), number.data()); };
    if constexpr (emulation::kAddressSanitizer) {
      expect_stray(read, {});
    } else {
      read();
      EXPECT_TRUE(std::isnan(download(number)[0])) << index;
    }
  }
}

TEST(Emulation, CopiesStayInsideABuffer) {
  Buffer<int> buffer(10);
  std::vector<int> numbers(20);
  EXPECT_THROW(detail::download(numbers.data(), buffer.data(), 44, nullptr), DeviceError);
  EXPECT_THROW(detail::upload(buffer.data() + 9, numbers.data(), 8, nullptr), DeviceError);
  EXPECT_THROW(detail::set_zero(numbers.data(), 4, nullptr), DeviceError);
  EXPECT_NO_THROW(detail::upload(buffer.data() + 9, numbers.data(), 4, nullptr));
}

constexpr int kMisaligned = __LINE__ + 2;
__global__ void misaligned_load_kernel(const Bfloat16* numbers, float* number) {
  *number = load16(numbers + threadIdx.x).values[0];
}

__global__ void division_kernel(int divisor, int* number) { *number = 7 / divisor; }

TEST(Emulation, WhatAProcessorRefusesIsAFault) {
  Buffer<Bfloat16> numbers(64);
  Buffer<float> number(1);
  Buffer<int> quotient(1);
  expect_words(fault_of([&] { launch<misaligned_load_kernel>(shape(1, 2), numbers.data(), number.data()); }),
               {"thread (1,0,0)", "load16 accesses a misaligned address", here(kMisaligned)});
#ifndef __SANITIZE_UNDEFINED__
  if (!emulation::kAddressSanitizer) {  // the sanitizers that are excluded here would end the program first
    expect_words(fault_of([&] { launch<division_kernel>(shape(1, 1), 0, quotient.data()); }),
                 {"divides an integer by zero"});
  }
#endif
}

int depth_of(int depth, volatile int* numbers) {
  volatile int frame[256];
  frame[depth % 256] = numbers[0];
  return depth == 0 ? frame[0] : depth_of(depth - 1, frame) + frame[depth % 256];
}

__global__ void deep_recursion_kernel(int depth, int* number) { *number = depth_of(depth, number); }

TEST(Emulation, AStackThatOverflowsIsAFault) {
  Buffer<int> number(1);
  expect_words(fault_of([&] { launch<deep_recursion_kernel>(shape(1, 1), 1000, number.data()); }),
               {"overflows its stack"});
}

// Shared memory.

__global__ void shared_write_kernel(int64_t index) {
  SharedMemory memory;
  float* const first = memory.array<float>(10);
  float* const second = memory.array<float>(10);
  first[0] = 0;
  second[index] = 1;
}

TEST(Emulation, AWriteOutsideASharedArrayIsFoundAtTheBlocksEnd) {
  EXPECT_EQ(fault_of([] { launch<shared_write_kernel>(shape(1, 1, 88), 9); }), "");
  expect_stray([] { launch<shared_write_kernel>(shape(1, 1, 88), 10); },
               {"block (0,0,0)", "something was written 0 bytes past the end of shared array 1 of 40 bytes"});
  expect_stray([] { launch<shared_write_kernel>(shape(1, 1, 88), -1); },
               {"past the end of shared array 0 of 40 bytes"});
  expect_words(fault_of([] { launch<shared_write_kernel>(shape(1, 1, 88), -10000); }),
               {"before the begin of shared memory"});
}

TEST(Emulation, MoreSharedMemoryThanTheLaunchGrantsIsAFault) {
  expect_words(fault_of([] { launch<shared_write_kernel>(shape(1, 1, 87), 9); }),
               {"lays out 88 bytes of shared memory, but was launched with 87"});
}

__global__ void uneven_layout_kernel() {
  SharedMemory memory;
  float* const numbers = memory.array<float>(threadIdx.x == 7 ? 8 : 9);
  numbers[0] = 1;
}

TEST(Emulation, AllThreadsLayOutTheSame) {
  for (const Schedule& schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    expect_words(fault_of([] { launch<uneven_layout_kernel>(shape(1, 32, 64)); }),
                 {"lays out shared memory otherwise than another thread"});
  }
}

// Launches.

__global__ void fault_in_kernel(int64_t first, float* numbers) {
  if (blockIdx.x >= first) numbers[1000000 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

class Threads {
 public:
  explicit Threads(int count) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_ = omp_get_max_threads();
};

TEST(Emulation, TheFaultIsTheSameForAnyNumberOfThreads) {
  Buffer<float> numbers(1);
  for (const int threads : {1, 2, 5}) {
    const Threads scoped(threads);
    for (int repetition = 0; repetition < 20; ++repetition) {
      const ScopedSchedule ascending({0, false});
      expect_words(fault_of([&] { launch<fault_in_kernel>(shape(100, 32), 17, numbers.data()); }),
                   {"block (17,0,0)"});
      const ScopedSchedule descending({1, false});
      expect_words(fault_of([&] { launch<fault_in_kernel>(shape(100, 32), 17, numbers.data()); }),
                   {"block (99,0,0)"});
    }
  }
}

__global__ void order_kernel(int* next, int* order) {
  const int mine = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  order[atomicAdd(next, 1)] = mine;
  __syncthreads();
}

TEST(Emulation, ASeedStandsForOneOrder) {
  const Threads scoped(1);
  const auto order = [](uint64_t seed) {
    const ScopedSchedule schedule({seed, false});
    Buffer<int> next(1);
    next.clear();
    Buffer<int> numbers(4 * 64);
    launch<order_kernel>(shape(4, 64), next.data(), numbers.data());
    return download(numbers);
  };
  std::vector<int> ascending(4 * 64);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(order(0), ascending);
  EXPECT_EQ(order(1), std::vector<int>(ascending.rbegin(), ascending.rend()));
  EXPECT_EQ(order(2), order(2));
  EXPECT_NE(order(2), order(3));
  EXPECT_NE(order(2), ascending);
  std::vector<int> shuffled = order(3);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, ascending);
}

__global__ void nested_kernel(float* numbers) { launch<write_kernel>(shape(1, 1), 0, numbers); }
__global__ void throwing_kernel() { throw std::runtime_error("what kernels cannot do"); }

TEST(Emulation, WhatKernelsCannotDoIsAFault) {
  Buffer<float> numbers(1);
  expect_words(fault_of([&] { launch<nested_kernel>(shape(1, 1), numbers.data()); }),
               {"a kernel launches a kernel"});
  expect_words(fault_of([&] { launch<throwing_kernel>(shape(1, 1)); }), {"throws: what kernels cannot do"});
}

TEST(Emulation, GoesOnAfterAFault) {
  Buffer<float> numbers(1000);
  for (int repetition = 0; repetition < 50; ++repetition) {
    EXPECT_NE(fault_of([] { launch<divergent_barrier_kernel>(shape(4, 64)); }), "");
    EXPECT_NE(fault_of([&] { launch<write_kernel>(shape(4, 32), 5000, numbers.data()); }), "");
  }
}

TEST(Emulation, AScheduleLastsAsLongAsItsScope) {
  EXPECT_EQ(emulation::schedule().seed, 0U);
  {
    const ScopedSchedule outer({5, true});
    {
      const ScopedSchedule inner({6, false});
      EXPECT_EQ(emulation::schedule().seed, 6U);
    }
    EXPECT_EQ(emulation::schedule().seed, 5U);
    EXPECT_TRUE(emulation::schedule().eager_copies);
  }
  EXPECT_FALSE(emulation::schedule().eager_copies);
}

// A view for writing converts to one for reading, which can also still be made from its fields.
TEST(DeviceTensor, WhoeverMayWriteMayRead) {
  Buffer<float> numbers(8);
  const DeviceTensor<float> writable{numbers.data(), 1, 2, 4, 4, 8};
  const DeviceTensor<const float> readable = writable;
  EXPECT_EQ(readable.data, numbers.data());
  EXPECT_EQ(readable.slice_stride, 8);
  static_assert(std::is_aggregate_v<DeviceTensor<float>> && std::is_aggregate_v<DeviceTensor<const float>>);
  static_assert(!std::is_convertible_v<DeviceTensor<const float>, DeviceTensor<float>>);
  static_assert(!std::is_convertible_v<DeviceTensor<float>, DeviceTensor<const Bfloat16>>);
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
