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

/// Skips its tests where there is no device, or fails them with KVBOUND_REQUIRE_GPU=1.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (find_device(&why)) return;
    const char* const required = std::getenv("KVBOUND_REQUIRE_GPU");
    if (required != nullptr && std::string(required) == "1") FAIL() << "KVBOUND_REQUIRE_GPU=1, but: " << why;
    GTEST_SKIP() << why;
  }
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
