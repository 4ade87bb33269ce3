// Tests of instructions that only compute capability 9.0 has.
#pragma once

#include "device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A DeviceTest that also skips its tests on devices of another generation.
class HopperTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (device().compute_capability != 90)
      GTEST_SKIP() << device().name << " is not of compute capability 9.0";
  }
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
