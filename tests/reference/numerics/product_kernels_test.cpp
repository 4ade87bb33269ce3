#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/product_kernels.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::product_kernels_test {
namespace {

using test::Random;
using Names = std::vector<std::string_view>;

constexpr ProcessorFeatures kAvx{.avx = true};
constexpr ProcessorFeatures kAvx2{.avx = true, .avx2 = true, .fma = true, .bmi = true};
constexpr ProcessorFeatures kAvx512{.avx = true,
                                    .avx2 = true,
                                    .fma = true,
                                    .bmi = true,
                                    .avx512f = true,
                                    .avx512dq = true,
                                    .avx512bw = true,
                                    .avx512vl = true,
                                    .avx512cd = true};

Names faster(std::string_view core, const ProcessorFeatures& features) {
  const std::span<const std::string_view> cores = faster_cores(core, features);
  return {cores.begin(), cores.end()};
}

TEST(FasterCores, AreThoseThatTheInstructionsAllowFastestFirst) {
  EXPECT_EQ(faster("Prescott", kAvx512), (Names{"SkylakeX", "Haswell", "Sandybridge"}));
  EXPECT_EQ(faster("Prescott", kAvx2), (Names{"Haswell", "Sandybridge"}));
  EXPECT_EQ(faster("Prescott", kAvx), (Names{"Sandybridge"}));
  EXPECT_EQ(faster("Prescott", {}), Names{});
  EXPECT_EQ(faster("Sandybridge", kAvx512), (Names{"SkylakeX", "Haswell"}));
  EXPECT_EQ(faster("Haswell", kAvx512), (Names{"SkylakeX"}));
  EXPECT_EQ(faster("Zen", kAvx512), (Names{"SkylakeX"})) << "Zen 4 under a library that knows Zen 3";
  EXPECT_EQ(faster("Barcelona", kAvx2), (Names{"Haswell", "Sandybridge"})) << "an unknown AMD processor";
  EXPECT_EQ(faster("Nehalem", kAvx2), (Names{"Haswell", "Sandybridge"}));
}

TEST(FasterCores, LeaveACoreThatIsAsGood) {
  for (const std::string_view core : {"SkylakeX", "Cooperlake", "SapphireRapids"}) {
    EXPECT_EQ(faster(core, kAvx512), Names{}) << core;
  }
  for (const std::string_view core : {"Haswell", "Zen", "Excavator"}) {
    EXPECT_EQ(faster(core, kAvx2), Names{}) << core;
  }
  for (const std::string_view core : {"Sandybridge", "Bulldozer", "Piledriver", "Steamroller"}) {
    EXPECT_EQ(faster(core, kAvx), Names{}) << core;
  }
  EXPECT_EQ(faster("SkylakeX", kAvx2), Names{}) << "not slower ones either";
}

TEST(FasterCores, LeaveACoreThatIsNotKnown) {
  for (const std::string_view core : {"", "Unknown", "ARMV8", "POWER9", "Skylake", "SkylakeX2"}) {
    EXPECT_EQ(faster(core, kAvx512), Names{}) << core;
  }
}

// The processor must have every instruction that a core's kernels use, and the operating system must save the
// registers: if it does not, `avx` and everything built on it count as missing, whatever cpuid reports.
TEST(FasterCores, NeedEveryInstructionOfTheirLevel) {
  for (bool ProcessorFeatures::*const missing :
       {&ProcessorFeatures::bmi, &ProcessorFeatures::avx512f, &ProcessorFeatures::avx512dq,
        &ProcessorFeatures::avx512bw, &ProcessorFeatures::avx512vl, &ProcessorFeatures::avx512cd}) {
    ProcessorFeatures features = kAvx512;
    features.*missing = false;
    EXPECT_EQ(faster("Prescott", features), (Names{"Haswell", "Sandybridge"}));
    EXPECT_EQ(faster("Haswell", features), Names{});
  }
  for (bool ProcessorFeatures::*const missing : {&ProcessorFeatures::avx2, &ProcessorFeatures::fma}) {
    ProcessorFeatures features = kAvx512;
    features.*missing = false;
    EXPECT_EQ(faster("Prescott", features), (Names{"Sandybridge"}));
  }
  ProcessorFeatures features = kAvx512;
  features.avx = false;
  EXPECT_EQ(faster("Prescott", features), Names{});
}

TEST(KernelLevel, IsThatOfTheCoreInAnyLetters) {
  EXPECT_EQ(kernel_level("Prescott"), KernelLevel::sse);
  EXPECT_EQ(kernel_level("SANDYBRIDGE"), KernelLevel::avx);
  EXPECT_EQ(kernel_level("haswell"), KernelLevel::avx2);
  EXPECT_EQ(kernel_level("skylakeX"), KernelLevel::avx512);
  EXPECT_EQ(kernel_level("Opteron_SSE3"), KernelLevel::sse);
  EXPECT_EQ(kernel_level("Opteron_SSE"), std::nullopt);
}

TEST(ProcessorFeatures, AreThoseThatTheVectorLoopsRunOn) {
  const ProcessorFeatures features = processor_features();
  EXPECT_EQ(features.avx2, is_available(InstructionSet::avx2));
  EXPECT_EQ(features.avx512f, is_available(InstructionSet::avx512));
  EXPECT_TRUE(features.avx || !(features.avx2 || features.fma || features.avx512f));
}

// Products whose bits depend on the kernels: sums of 300 terms in full and in ragged blocks.
std::vector<double> some_products() {
  Random random(7);
  const Matrix a = random.matrix(97, 300), b = random.matrix(300, 53), c = random.matrix(53, 300);
  Matrix product(97, 53), transposed(97, 53);
  multiply(a, b, product.view());
  multiply_transposed(a, c, transposed.view());
  std::vector<double> numbers(product.numbers().begin(), product.numbers().end());
  numbers.insert(numbers.end(), transposed.numbers().begin(), transposed.numbers().end());
  return numbers;
}

bool has_several_cores() { return blas_info().name.find("DYNAMIC_ARCH") != std::string::npos; }

TEST(UseFastestProducts, RunsKernelsThatNoneIsFasterThanUnlessTheUserHasChosen) {
  const BlasInfo info = use_fastest_products();
  const char* core_type = std::getenv("OPENBLAS_CORETYPE");
  if (has_several_cores() && core_type && *core_type) {
    EXPECT_EQ(info.chosen_by, KernelChoice::user);
    EXPECT_EQ(info.core, info.core_at_load);
  } else if (has_several_cores()) {
    EXPECT_EQ(info.faster_core, "");
    EXPECT_EQ(info.chosen_by == KernelChoice::fastest, info.core != info.core_at_load);
  } else {
    EXPECT_EQ(info.chosen_by, KernelChoice::library);
    EXPECT_EQ(info.core, info.core_at_load);
  }
  const BlasInfo again = use_fastest_products();
  EXPECT_EQ(again.core, info.core);
  EXPECT_EQ(again.chosen_by, info.chosen_by);
  EXPECT_EQ(blas_info().core, info.core);
}

TEST(ProductsOf, AreThoseOfTheCoreForAWhile) {
  const std::string core = blas_info().core;
  const std::vector<double> before = some_products();
  {
    const ProductsOf prescott("Prescott");
    EXPECT_EQ(blas_info().core, has_several_cores() ? "Prescott" : core);
    const std::vector<double> numbers = some_products();
    ASSERT_EQ(numbers.size(), before.size());
    for (size_t i = 0; i < numbers.size(); ++i) EXPECT_NEAR(numbers[i], before[i], 1e-11);
    if (has_several_cores() && core != "Prescott") {
      EXPECT_NE(numbers, before) << "a product that cannot tell";
    }
  }
  EXPECT_EQ(blas_info().core, core);
  EXPECT_EQ(some_products(), before);
}

TEST(ProductsOf, ChangesNothingForTheCoreAtWorkOrTheEnvironment) {
  const BlasInfo before = blas_info();
  const char* core_type = std::getenv("OPENBLAS_CORETYPE");
  const std::string was_set = core_type ? core_type : "(not set)";
  { const ProductsOf same(before.core); }
  { const ProductsOf prescott("Prescott"); }
  const char* now = std::getenv("OPENBLAS_CORETYPE");
  EXPECT_EQ(now ? now : "(not set)", was_set);
  EXPECT_EQ(blas_info().chosen_by, before.chosen_by);
  EXPECT_EQ(blas_info().core, before.core);
}

TEST(BlasInfo, NamesAFasterCoreOfASlowOne) {
  if (!has_several_cores() || !processor_features().avx) return;  // no faster core exists
  const ProductsOf prescott("Prescott");
  EXPECT_EQ(blas_info().faster_core, faster("Prescott", processor_features()).front());
}

}  // namespace
}  // namespace kvbound::reference::product_kernels_test
