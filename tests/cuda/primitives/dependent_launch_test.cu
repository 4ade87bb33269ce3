// Dependent launches: what a kernel writes is complete for all that follow, and what it reads is left alone
// until it has ended.
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/support/recording.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class DependentLaunch : public DeviceTest {};

constexpr int kThreads = 64;
#ifdef KVBOUND_CUDA_NATIVE
constexpr int64_t kBlocks = 300;
constexpr int kLaunches = 3000;
constexpr unsigned kMostTurns = 500;
#else
constexpr int64_t kBlocks = 5;
constexpr int kLaunches = 12;
constexpr unsigned kMostTurns = 2;
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

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
