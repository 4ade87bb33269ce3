// Tests in one source that run emulated everywhere and natively where there is a device.
#pragma once

#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/support/device.hpp>

#ifndef KVBOUND_CUDA_NATIVE
#include <kvbound/cuda/emulation/schedule.hpp>
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Skips its tests where there is no device, or fails them with KVBOUND_REQUIRE_GPU=1; skips them on devices
/// of another compute capability if they are for one alone.
class DeviceTest : public testing::Test {
 protected:
  /// capability  the only one that has the instructions, 90 for 9.0; 0: any
  explicit DeviceTest(int capability = 0) : capability_(capability) {}

  void SetUp() override {
    std::string why;
    if (const auto found = find_device(&why)) {
      if (capability_ == 0 || found->compute_capability == capability_) return;
      why = found->name + " is not of compute capability " + std::to_string(capability_ / 10) + ".0";
    } else {
      const char* const required = std::getenv("KVBOUND_REQUIRE_GPU");
      if (required != nullptr && std::string(required) == "1")
        FAIL() << "KVBOUND_REQUIRE_GPU=1, but: " << why;
    }
    GTEST_SKIP() << why;
  }

 private:
  int capability_;
};

/// Of instructions that only compute capability 9.0 has.
class HopperTest : public DeviceTest {
 protected:
  HopperTest() : DeviceTest(90) {}
};

/// Calls test() under several schedules; natively once.
template <class Test>
void under_every_schedule(const Test& test) {
#ifdef KVBOUND_CUDA_NATIVE
  test();
#else
  for (const uint64_t seed : {0, 1, 2, 3}) {
    for (const bool eager : {false, true}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + (eager ? ", eager copies" : ", lazy copies"));
      const emulation::ScopedSchedule schedule({seed, eager});
      test();
    }
  }
#endif
}

template <class T>
std::vector<T> download(const Buffer<T>& buffer) {
  std::vector<T> numbers(buffer.size());
  buffer.download(numbers);
  return numbers;
}

template <class T>
Buffer<T> upload(const std::vector<T>& numbers) {
  return Buffer<T>(std::span<const T>(numbers));
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
