#include <gtest/gtest.h>

#include <kvbound/sim/options/magnitude.hpp>

namespace kvbound::sim::magnitude_test {
namespace {

TEST(DurationText, HasThreeDigitsAndTheUnitThatSuitsThem) {
  EXPECT_EQ(duration_text(1.287), "1.29 s");
  EXPECT_EQ(duration_text(48.13), "48.1 s");
  EXPECT_EQ(duration_text(118.2), "118 s");
  EXPECT_EQ(duration_text(0.1181), "118 ms");
  EXPECT_EQ(duration_text(0.04392), "43.9 ms");
  EXPECT_EQ(duration_text(0.001), "1.00 ms");
  EXPECT_EQ(duration_text(967.2e-6), "967 us");
  EXPECT_EQ(duration_text(1e-6), "1.00 us");
  EXPECT_EQ(duration_text(1e-9), "1.00 ns");
}

TEST(DurationText, TakesTheUnitAfterRounding) {
  EXPECT_EQ(duration_text(0.99996), "1.00 s");
  EXPECT_EQ(duration_text(0.9994), "999 ms");
  EXPECT_EQ(duration_text(999.7e-6), "1.00 ms");
  EXPECT_EQ(duration_text(999.7), "1000 s");
  EXPECT_EQ(duration_text(9.996), "10.0 s");
  EXPECT_EQ(duration_text(99.96e-3), "100 ms");
}

TEST(DurationText, HasNoUnitBelowTheLeast) {
  EXPECT_EQ(duration_text(2.5e-11), "0.0250 ns");
  EXPECT_EQ(duration_text(0), "0.00 ns");
}

TEST(MemoryText, HasThreeDigitsAndTheUnitThatSuitsThem) {
  EXPECT_EQ(memory_text(0), "0 B");
  EXPECT_EQ(memory_text(999), "999 B");
  EXPECT_EQ(memory_text(1023), "0.999 KiB");
  EXPECT_EQ(memory_text(2944), "2.88 KiB");
  EXPECT_EQ(memory_text(320 * 1024.0 * 1024), "320 MiB");
  EXPECT_EQ(memory_text(0x1p60), "1.05e+06 TiB");
}

TEST(RateText, HasThreeDigits) {
  EXPECT_EQ(rate_text(26.66e9, "FLOP"), "26.7 GFLOP/s");
  EXPECT_EQ(rate_text(118.2e9, "FLOP"), "118 GFLOP/s");
  EXPECT_EQ(rate_text(0.5e9, "FLOP"), "0.500 GFLOP/s");
  EXPECT_EQ(rate_text(618.2e12, "FLOP"), "618 TFLOP/s");
  EXPECT_EQ(rate_text(999.7e9, "FLOP"), "1.00 TFLOP/s");
  EXPECT_EQ(rate_text(4.214e12, "bytes"), "4.21 TB/s");
  EXPECT_EQ(rate_text(21.4e9, "bytes"), "21.4 GB/s");
  EXPECT_EQ(rate_text(7.654e8, "exponentials"), "765 million exponentials/s");
  EXPECT_EQ(rate_text(999.7e3, "scores"), "1.00 million scores/s");
  EXPECT_EQ(rate_text(999.4e3, "scores"), "999000 scores/s");
  EXPECT_EQ(rate_text(0.02079, "layers"), "0.0208 layers/s");
}

}  // namespace
}  // namespace kvbound::sim::magnitude_test
