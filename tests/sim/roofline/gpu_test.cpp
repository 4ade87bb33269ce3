#include <kvbound/sim/roofline/gpu.hpp>

#include <gtest/gtest.h>

#include <kvbound/sim/options/command_line.hpp>

namespace kvbound::sim {
namespace {

TEST(Gpu, EveryModelHasTheSameConstantsEachWithASource) {
  const Gpu first = Gpu::named(gpu_names().front());
  for (const std::string& name : gpu_names()) {
    const Gpu gpu = Gpu::named(name);
    ASSERT_EQ(gpu.constants().size(), first.constants().size());
    for (size_t i = 0; i < gpu.constants().size(); ++i) {
      EXPECT_EQ(gpu.constants()[i].name, first.constants()[i].name);
      EXPECT_EQ(gpu.constants()[i].unit, first.constants()[i].unit) << gpu.constants()[i].name;
      EXPECT_GT(gpu.constants()[i].value, 0) << gpu.constants()[i].name;
      EXPECT_FALSE(gpu.constants()[i].source.empty()) << gpu.constants()[i].name;
    }
  }
}

TEST(Gpu, WhatWasMeasuredStandsBesideWhatWasPredicted) {
  EXPECT_TRUE(Gpu::named("h100").measured().empty()) << "the documents say that no H100 was at hand";
  const Gpu h200 = Gpu::named("h200");
  EXPECT_FALSE(h200.measured().empty());
  for (const GpuMeasurement& each : h200.measured()) {
    EXPECT_NE(each.operation.find(", llama-3.1-8b:32768"), std::string::npos) << each.operation;
    EXPECT_GT(each.seconds, 0) << each.operation;
    EXPECT_GT(each.predicted, 0) << each.operation;
    EXPECT_NE(each.from.find("revision"), std::string::npos) << each.operation;
  }
}

TEST(Gpu, WhatIsNearerIsFaster) {
  for (const std::string& name : gpu_names()) {
    const Gpu gpu = Gpu::named(name);
    EXPECT_LT(gpu.of("copy_bandwidth"), gpu.of("l2_bandwidth")) << name;
    EXPECT_LT(gpu.of("host_bandwidth"), gpu.of("copy_bandwidth")) << name;
    EXPECT_LT(gpu.of("matrix_rate"), gpu.of("peak_matrix_rate")) << name;
    EXPECT_LT(gpu.of("mma_sync_share"), 1) << name;
    EXPECT_LT(gpu.of("shared_latency"), gpu.of("device_latency")) << name;
    EXPECT_LT(gpu.of("instruction_latency"), gpu.of("shared_latency")) << name;
    EXPECT_LT(gpu.of("barrier_latency"), gpu.of("cluster_barrier_latency")) << name;
    EXPECT_LT(gpu.of("next_launch"), gpu.of("first_launch")) << name;
  }
}

TEST(Gpu, TheyDifferInTheirMemory) {
  EXPECT_EQ(Gpu::named("h100").of("copy_bandwidth"), 3.0e12);
  EXPECT_EQ(Gpu::named("h200").of("copy_bandwidth"), 4.22e12);
  EXPECT_EQ(Gpu::named("h200").name(), "NVIDIA H200 SXM");
}

TEST(Gpu, OtherNamesAreRefused) {
  try {
    Gpu::named("b200\n");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "no model of a GPU 'b200\\x0a'; known: h100, h200");
  }
}

}  // namespace
}  // namespace kvbound::sim
