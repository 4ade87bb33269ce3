#include <kvbound/sim/roofline/kernel_build.hpp>

#include <gtest/gtest.h>

namespace kvbound::sim {
namespace {

TEST(KernelBuild, IsThatOfTheTables) {
  for (const char* const kernel :
       {"compact_kernel<16>", "attention_splits::attention_mma_kernel<Bfloat16, 8, 1>",
        "critical_kv_norms::norms_mma_kernel<8, Bfloat16>", "attention_splits::attention_join_kernel"}) {
    const auto build = kernel_build(kernel);
    ASSERT_TRUE(build) << kernel;
    EXPECT_GE(build->registers, 16) << kernel;
    EXPECT_LE(build->registers, 255) << kernel;
    EXPECT_GT(build->instructions, 1) << "there are instructions that are not counted: " << kernel;
    EXPECT_GT(build->integers, 0) << kernel;
    EXPECT_LT(build->integers, build->instructions) << kernel;
  }
}

TEST(KernelBuild, CountsDoublePrecision) {
  EXPECT_EQ(kernel_build("compact_kernel<16>")->doubles, 0);
  const auto gram = kernel_build("value_space_kernels::gram_kernel<Bfloat16>");
  ASSERT_TRUE(gram);
  EXPECT_GT(gram->doubles, 1) << "of each number in shared memory several products are formed";
  EXPECT_LT(gram->doubles, gram->instructions);
}

TEST(KernelBuild, OfUnknownKernelsThereIsNone) {
  EXPECT_FALSE(kernel_build("loops"));
  EXPECT_FALSE(kernel_build(""));
}

}  // namespace
}  // namespace kvbound::sim
