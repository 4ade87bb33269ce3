#include <limits>

#include <gtest/gtest.h>

#include <kvbound/sim/measure/mean.hpp>

namespace kvbound::sim {
namespace {

TEST(Mean, LeavesOutAndCountsWhatIsUndefined) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Mean mean;
  EXPECT_EQ(mean.value(), std::nullopt);
  for (const double value : {1.0, kNan, 4.0, kNan, kNan}) mean.add(value);
  EXPECT_EQ(mean.value(), 2.5);
  EXPECT_EQ(mean.undefined, 3);
  EXPECT_EQ(mean.count, 2);
}

}  // namespace
}  // namespace kvbound::sim
