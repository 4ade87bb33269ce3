// The emulation reports threads of a dependent launch that do not wait for the launch before, or too late.
#include <string>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/async_copy.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>

#include "support/device_test.hpp"
#include "support/emulation_faults.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

enum class Fault { kNone, kNoWait, kWaitOfOneWarp, kEarlyCopy };

__global__ void copy_kernel(Fault fault, const float* from, float* to) {
  SharedMemory memory;
  float* const copied = memory.array<float>(4 * blockDim.x);
  if (fault == Fault::kNoWait || (fault == Fault::kWaitOfOneWarp && warp() > 0)) return;
  if (fault == Fault::kEarlyCopy) async_copy16(copied + 4 * threadIdx.x, from + 4 * threadIdx.x);
  await_previous_launch();
  if (fault != Fault::kEarlyCopy) async_copy16(copied + 4 * threadIdx.x, from + 4 * threadIdx.x);
  async_commit();
  async_wait<0>();
  to[threadIdx.x] = copied[4 * threadIdx.x];
}

std::string copy(Fault fault, bool dependent) {
  constexpr int kThreads = 64;
  const Buffer<float> from(4 * kThreads);
  Buffer<float> to(kThreads);
  return fault_of([&] {
    const LaunchShape blocks = shape(1, kThreads, 16 * kThreads);
    if (dependent) {
      launch_dependent<copy_kernel>(blocks, fault, from.data(), to.data());
    } else {
      launch<copy_kernel>(blocks, fault, from.data(), to.data());
    }
  });
}

TEST(EmulatedDependentLaunches, WaitInEveryThread) {
  EXPECT_EQ(copy(Fault::kNone, true), "");
  for (const Fault fault : {Fault::kNoWait, Fault::kWaitOfOneWarp}) {
    expect_words(copy(fault, true), {"returns without having waited for the launch before"});
    EXPECT_EQ(copy(fault, false), "") << "another launch waits for nobody";
  }
}

TEST(EmulatedDependentLaunches, WaitBeforeTheyReadDeviceMemory) {
  expect_words(copy(Fault::kEarlyCopy, true), {"before it has waited for the launch before"});
  EXPECT_EQ(copy(Fault::kEarlyCopy, false), "");
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
