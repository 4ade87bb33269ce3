// Dependent launches: what a kernel writes is complete for all that follow, and what it reads is left alone
// until it has ended.
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/support/recording.hpp>

#include "support/device_test.hpp"
#ifndef KVBOUND_CUDA_NATIVE
#include "support/emulation_faults.hpp"
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class DependentLaunch : public DeviceTest {};

constexpr int kThreads = 64;
#ifdef KVBOUND_CUDA_NATIVE
constexpr int64_t kBlocks = 300;
constexpr int kLaunches = 3000;
constexpr unsigned kMostTurns = 500;
constexpr int kMostReads = 200;
#else
constexpr int64_t kBlocks = 5;
constexpr int kLaunches = 12;
constexpr unsigned kMostTurns = 2;
constexpr int kMostReads = 2;
#endif
constexpr int64_t kNumbers = kBlocks * kThreads;
constexpr uint32_t kFactor = 1664525;

// to[i] = kFactor from[i + 1] + round, by blocks of which some take much longer than others.
__global__ void step_kernel(const uint32_t* from, uint32_t* to, uint32_t round) {
  allow_next_launch();
  const int64_t count = int64_t{gridDim.x} * blockDim.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  await_previous_launch();
  uint32_t number = from[(i + 1) % count];
  for (unsigned wait = 0; wait < (blockIdx.x + round) % 7 * kMostTurns; ++wait) {
    number = number * kFactor + 1;
    number = (number - 1) * 4276115653U;  // the inverse of kFactor
  }
  to[i] = number * kFactor + round;
}

std::vector<uint32_t> stepped(const std::vector<uint32_t>& from, uint32_t round) {
  std::vector<uint32_t> to(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = from[(i + 1) % from.size()] * kFactor + round;
  return to;
}

// Two buffers in turns: each kernel reads what the one before wrote, and overwrites what that read.
struct Turns {
  Buffer<uint32_t> one, other;

  Turns() : one(upload(ascending())), other(kNumbers) {}
  static std::vector<uint32_t> ascending() {
    std::vector<uint32_t> numbers(kNumbers);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }
  void take(int launches, Stream stream) {
    for (int round = 0; round < launches; ++round) {
      launch_dependent<step_kernel>({extent(kBlocks), extent(kThreads), 0, stream}, one.data(), other.data(),
                                    static_cast<uint32_t>(round));
      std::swap(one, other);
    }
  }
};

TEST_F(DependentLaunch, ReadsAndOverwritesWhatTheOneBeforeHasLeft) {
  under_every_schedule([] {
    Turns turns;
    std::vector<uint32_t> expected = Turns::ascending();
    turns.take(kLaunches, nullptr);
    for (int round = 0; round < kLaunches; ++round)
      expected = stepped(expected, static_cast<uint32_t>(round));
    EXPECT_EQ(download(turns.one), expected);
  });
}

TEST_F(DependentLaunch, IsRecorded) {
  constexpr int kRecorded = 4, kRepeats = 5;
  Turns turns;
  Recording recording;
  std::vector<uint32_t> expected = Turns::ascending();
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    recording.run(nullptr, [&](Stream stream) { turns.take(kRecorded, stream); });
    for (int round = 0; round < kRecorded; ++round)
      expected = stepped(expected, static_cast<uint32_t>(round));
  }
  EXPECT_EQ(download(turns.one), expected);
}

// Reads its numbers again and again, as a kernel does that reads late, and counts those that are not as
// expected.
__global__ void read_kernel(const volatile uint32_t* numbers, uint32_t expected, int reads, int* others) {
  begin_dependent_launch();
  const uint32_t own = blockIdx.x * blockDim.x + threadIdx.x;
  bool is_other = false;
  for (int read = 0; read < reads && !is_other; ++read) is_other = numbers[own] != expected + own;
  if (is_other) atomicAdd(others, 1);
}

// Overwrites them, and has hardly anything else to do.
template <bool kWaits>
__global__ void overwrite_kernel(uint32_t* numbers, uint32_t next) {
  allow_next_launch();
  const uint32_t own = blockIdx.x * blockDim.x + threadIdx.x;
  if constexpr (kWaits) await_previous_launch();
  numbers[own] = next + own;
}

// Accesses no memory.
__global__ void idle_kernel() { begin_dependent_launch(); }

// Kernels that read late; behind each one are so many idle ones and one that overwrites what it reads: queued
// one by one, and as a graph. Returns how often a number was another one than it was to be.
template <bool kWaits>
int overwritten_early(int rounds, int reads, int idle) {
  Buffer<uint32_t> numbers = upload(Turns::ascending());
  Buffer<int> others = upload(std::vector<int>{0});
  Recording recording;
  for (int repeat = 0; repeat < 2; ++repeat) {
    recording.run(nullptr, [&](Stream stream) {
      const LaunchShape shape{extent(kBlocks), extent(kThreads), 0, stream};
      for (int round = 0; round < rounds; ++round) {
        const auto now = static_cast<uint32_t>(round), next = static_cast<uint32_t>((round + 1) % rounds);
        launch_dependent<read_kernel>(shape, numbers.data(), now, reads, others.data());
        for (int i = 0; i < idle; ++i) launch_dependent<idle_kernel>(shape);
        launch_dependent<overwrite_kernel<kWaits>>(shape, numbers.data(), next);
      }
    });
  }
  return download(others).front();
}

TEST_F(DependentLaunch, DoesNotOverwriteWhatKernelsBeforeItStillRead) {
  under_every_schedule([] {
    for (const int idle : {0, 1, 2}) {
      EXPECT_EQ(overwritten_early<true>(kLaunches / 6, kMostReads, idle), 0) << idle << " idle kernels";
    }
  });
}

// That the test above can fail: a kernel that does not wait overwrites what the one before still reads. Its
// reads take longer by far than a launch. Where launches are separated, it has to wait.
TEST_F(DependentLaunch, OverwritesWhatIsStillReadIfItDoesNotWait) {
#ifdef KVBOUND_CUDA_NATIVE
  const bool overlap = device().has_clusters && std::getenv("KVBOUND_SEPARATE_LAUNCHES") == nullptr;
  EXPECT_EQ(overwritten_early<false>(2, 1000 * kMostReads, 0) > 0, overlap);
#else
  expect_words(fault_of([] { overwritten_early<false>(2, kMostReads, 0); }),
               {"returns without having waited for the launch before"});
#endif
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
