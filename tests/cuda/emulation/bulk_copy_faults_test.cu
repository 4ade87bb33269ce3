// The emulation reports wrong uses of mbarriers, bulk copies and tensor maps: kernels with a template of
// faults, correct while all are turned off.
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/bulk_copy.hpp>
#include <kvbound/cuda/primitives/tensor_load.hpp>

#include "support/device_test.hpp"
#include "support/emulation_faults.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using emulation::ScopedSchedule;

constexpr int kTile = 32;  // numbers

// Thread 0 loads tile after tile into two stages, thread 32 adds them up.
struct PipelineFaults {
  bool no_init = false;
  bool no_init_fence = false;
  bool second_init = false;
  bool phase_not_flipped = false;
  bool no_wait = false;
  bool no_empty_wait = false;
  bool no_empty_arrival = false;
  bool two_arrivals = false;
  int expected_bytes = kTile * 4;
};

struct Shared {
  int* numbers;
  uint64_t* full;
  uint64_t* empty;

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : numbers(memory.array<int>(2 * kTile, 128)),
        full(memory.array<uint64_t>(2)),
        empty(memory.array<uint64_t>(2)) {}
};

__device__ void produce(const Shared& shared, const int* numbers, int tiles, const PipelineFaults& faults) {
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % 2;
    if (!faults.no_empty_wait) mbarrier_wait(shared.empty + stage, static_cast<unsigned>(tile / 2 % 2 ^ 1));
    mbarrier_arrive_expect(shared.full + stage, faults.expected_bytes);
    if (faults.two_arrivals) mbarrier_arrive(shared.full + stage);
    bulk_load(shared.numbers + stage * kTile, numbers + tile * kTile, kTile * 4, shared.full + stage);
  }
}

__device__ void consume(const Shared& shared, int tiles, const PipelineFaults& faults, int* sums) {
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % 2;
    const auto phase = static_cast<unsigned>(faults.phase_not_flipped ? 0 : tile / 2 % 2);
    if (!faults.no_wait) mbarrier_wait(shared.full + stage, phase);
    int sum = 0;
    for (int i = 0; i < kTile; ++i) sum += shared.numbers[stage * kTile + i];
    sums[tile] = sum;
    if (!faults.no_empty_arrival) mbarrier_arrive(shared.empty + stage);
  }
}

__global__ void pipeline_kernel(const int* numbers, int tiles, PipelineFaults faults, int* sums) {
  SharedMemory memory;
  const Shared shared(memory);
  if (threadIdx.x == 0 && !faults.no_init) {
    for (int stage = 0; stage < 2; ++stage) {
      mbarrier_init(shared.full + stage, 1);
      mbarrier_init(shared.empty + stage, 1);
      if (faults.second_init) mbarrier_init(shared.full + stage, 1);
    }
    if (!faults.no_init_fence) mbarrier_fence_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) produce(shared, numbers, tiles, faults);
  if (threadIdx.x == 32) consume(shared, tiles, faults, sums);
}

struct Outcome {
  std::string fault;
  bool right = false;
};

Outcome pipeline(const PipelineFaults& faults, int tiles = 5) {
  std::vector<int> numbers(static_cast<size_t>(tiles * kTile));
  std::iota(numbers.begin(), numbers.end(), 1);
  std::vector<int> expected;
  for (int tile = 0; tile < tiles; ++tile) expected.push_back(kTile * kTile * tile + kTile * (kTile + 1) / 2);
  const Buffer<int> input = upload(numbers);
  Buffer<int> sums(tiles);
  Outcome outcome;
  outcome.fault = fault_of([&] {
    launch<pipeline_kernel>(shape(1, 64, shared_bytes<Shared>()), input.data(), tiles, faults, sums.data());
  });
  outcome.right = outcome.fault.empty() && download(sums) == expected;
  return outcome;
}

void expect_fault(const PipelineFaults& faults, const std::vector<std::string>& words) {
  under_every_schedule([&] { expect_words(pipeline(faults).fault, words); });
}

TEST(BulkCopyFaults, NoneIsFoundInACorrectPipeline) {
  under_every_schedule([&] {
    const Outcome outcome = pipeline({});
    EXPECT_TRUE(outcome.right) << outcome.fault;
  });
}

TEST(BulkCopyFaults, AnMbarrierIsInitialisedOnceBeforeItsUse) {
  expect_fault({.no_init = true}, {"uses an mbarrier that is not initialised"});
  expect_fault({.second_init = true}, {"mbarrier.init of an mbarrier in use"});
  expect_fault({.no_init_fence = true}, {"cp.async.bulk", "with no fence behind that"});
}

// The first tiles of both stages are right; then a wait for a phase that is over goes on at once, or a wait
// for one that never comes is a deadlock.
TEST(BulkCopyFaults, APhaseBitThatIsNotFlippedIsNamed) {
  int named = 0;
  under_every_schedule([&] {
    const Outcome outcome = pipeline({.phase_not_flipped = true});
    EXPECT_NE(outcome.fault, "");
    if (outcome.fault.find("its phase bit was not flipped") != std::string::npos) ++named;
  });
  EXPECT_GE(named, 6);
}

TEST(BulkCopyFaults, AMissingWaitForALoadShowsUnderEverySchedule) {
  under_every_schedule([&] {
    EXPECT_FALSE(pipeline({.no_wait = true}).right);
    expect_words(pipeline({.no_wait = true, .no_empty_wait = true}, 1).fault,
                 {"none has waited for the bulk copy"});
  });
}

TEST(BulkCopyFaults, AStageThatIsLoadedWhileItIsReadShows) {
  under_every_schedule([&] { EXPECT_FALSE(pipeline({.no_empty_wait = true}).right); });
  expect_fault({.no_empty_arrival = true},
               {"no thread can go on", "mbarrier.try_wait (in phase 0", "1 of 1 arrivals"});
}

TEST(BulkCopyFaults, ArrivalsAndBytesAreCounted) {
  expect_fault({.two_arrivals = true}, {"mbarrier.arrive is one arrival more than the phase expects"});
  expect_fault({.expected_bytes = kTile * 4 + 16},
               {"no thread can go on", "0 of 1 arrivals and 16 bytes are missing"});
  expect_fault({.expected_bytes = kTile * 4 - 16}, {"lands more bytes than its mbarrier expects"});
  expect_fault({.expected_bytes = 1 << 20}, {"expects 1048576 bytes; 1048575 are the most"});
}

__global__ void overwritten_kernel(int where) {
  SharedMemory memory;
  uint64_t* const barrier = memory.array<uint64_t>(2);
  mbarrier_init(barrier, 1);
  barrier[where] = 5;
  mbarrier_arrive(barrier);
  mbarrier_wait(barrier, 0);
}

TEST(BulkCopyFaults, AnMbarrierThatIsOverwrittenIsNoticed) {
  EXPECT_EQ(fault_of([] { launch<overwritten_kernel>(shape(1, 1, 16), 1); }), "");
  expect_words(fault_of([] { launch<overwritten_kernel>(shape(1, 1, 16), 0); }),
               {"mbarrier that has been overwritten"});
}

// Single loads.

struct LoadFaults {
  int bytes = 16;
  int first = 0;
};

__global__ void load_kernel(LoadFaults faults, const int* numbers, int* found) {
  SharedMemory memory;
  int* const shared = memory.array<int>(4);
  uint64_t* const barrier = memory.array<uint64_t>(1);
  mbarrier_init(barrier, 1);
  mbarrier_fence_init();
  mbarrier_arrive_expect(barrier, faults.bytes);
  bulk_load(shared, numbers + faults.first, faults.bytes, barrier);
  mbarrier_wait(barrier, 0);
  for (int i = 0; i < 4; ++i) found[i] = shared[i];
}

Outcome load(const LoadFaults& faults, bool eager) {
  const ScopedSchedule scoped({0, eager});
  const Buffer<int> numbers = upload(std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8});
  Buffer<int> found(4);
  Outcome outcome;
  outcome.fault =
      fault_of([&] { launch<load_kernel>(shape(1, 1, 32), faults, numbers.data(), found.data()); });
  outcome.right = outcome.fault.empty() && download(found) == std::vector<int>{1, 2, 3, 4};
  return outcome;
}

TEST(BulkCopyFaults, ALoadIsOfUnitsOf16BytesInsideItsMemory) {
  for (const bool eager : {false, true}) {
    EXPECT_TRUE(load({}, eager).right);
    expect_words(load({.bytes = 12}, eager).fault, {"12 bytes", "no multiple of 16"});
    expect_words(load({.first = 1}, eager).fault, {"misaligned"});
    expect_words(load({.bytes = 48}, eager).fault, {"outside shared memory"});
    expect_words(load({.first = 8}, eager).fault, {"past the end of a buffer of 32 bytes"});
  }
}

// Tensor loads.

__global__ void box_kernel(const __grid_constant__ TensorMap map, int column, int64_t offset, float* number) {
  SharedMemory memory;
  float* const box = memory.array<float>(1024, 1024);
  uint64_t* const barrier = memory.array<uint64_t>(1);
  mbarrier_init(barrier, 1);
  mbarrier_fence_init();
  mbarrier_arrive_expect(barrier, 1024);
  load_box(box + offset, map, barrier, column, 0, 0);
  number[0] = box[offset];
  mbarrier_wait(barrier, 0);
  number[1] = box[offset];
}

struct BoxOutcome {
  std::string fault;
  std::vector<float> numbers;  // before and behind the wait
};

BoxOutcome box(int64_t offset, bool eager, int column = 0) {
  const ScopedSchedule scoped({0, eager});
  const Buffer<float> tensor = upload(std::vector<float>(1024, 3));
  const TensorMap map = tensor_map(tensor.data(), {{32, 32, 1}, {128, 4096}, {32, 8, 1}});
  Buffer<float> numbers(2);
  BoxOutcome outcome;
  outcome.fault =
      fault_of([&] { launch<box_kernel>(shape(1, 1, 4112), map, column, offset, numbers.data()); });
  outcome.numbers = download(numbers);
  return outcome;
}

TEST(BulkCopyFaults, ALazyBoxIsNanUntilItIsWaitedFor) {
  const BoxOutcome lazy = box(0, false);
  EXPECT_EQ(lazy.fault, "");
  EXPECT_TRUE(std::isnan(lazy.numbers[0]));
  EXPECT_EQ(lazy.numbers[1], 3);
  EXPECT_EQ(box(0, true).numbers, (std::vector<float>{3, 3}));
}

TEST(BulkCopyFaults, ABoxGoesToAMultipleOfItsSwizzlesPeriod) {
  for (const bool eager : {false, true}) {
    expect_words(box(32, eager).fault, {"cp.async.bulk.tensor", "misaligned"});
    expect_words(box(1024, eager).fault, {"cp.async.bulk.tensor", "outside shared memory"});
  }
}

TEST(BulkCopyFaults, ABoxBeginsAt16BytesOfARow) {
  for (const bool eager : {false, true}) {
    EXPECT_EQ(box(0, eager, -4).fault, "");
    for (const int column : {-1, 2, 5}) {
      expect_words(box(0, eager, column).fault,
                   {"cp.async.bulk.tensor from column " + std::to_string(column), "illegal on a GPU"});
    }
  }
}

TEST(BulkCopyFaults, ATensorThatReachesBeyondItsBufferIsRefused) {
  const Buffer<float> tensor(1024);
  const auto fault = [&](int64_t rows) {
    return fault_of([&] {
      static_cast<void>(tensor_map(tensor.data(), {{32, rows, 1}, {128, 4096}, {32, 8, 1}}));
    });
  };
  EXPECT_EQ(fault(32), "");
  expect_words(fault(33), {"tensor map", "4224 bytes at byte 0 of a buffer of 4096 bytes"});
}

TEST(BulkCopyFaults, TheEmulationGoesOnAfterAFault) {
  const ScopedSchedule lazy({0, false});
  for (int repetition = 0; repetition < 20; ++repetition) {
    EXPECT_NE(pipeline({.two_arrivals = true}).fault, "");
    EXPECT_TRUE(pipeline({}).right);
  }
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
