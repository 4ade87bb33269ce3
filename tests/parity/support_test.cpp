// Tests of the helpers that the parity tests rely on.
#include <cmath>
#include <limits>

#include <kvbound/reference/core/infinity.hpp>

#include "support.hpp"

namespace kvbound::parity {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

testing::AssertionResult hold(const Floats& actual, const Doubles& expected, const Doubles& bounds) {
  return Comparator("test").hold(actual, expected, bounds);
}

TEST(ParityComparator, PassesWhatIsWithinItsBound) {
  EXPECT_TRUE(hold({1.5f, 2}, {1, 2}, {0.5, 0}));
  EXPECT_TRUE(hold({0.5f, 2}, {1, 2}, {0.5, 0}));
  EXPECT_FALSE(hold({std::nextafter(1.5f, 2.0f), 2}, {1, 2}, {0.5, 0}));
  EXPECT_FALSE(hold({std::nextafter(0.5f, 0.0f), 2}, {1, 2}, {0.5, 0}));
}

TEST(ParityComparator, RefusesNumbersThatAreNone) {
  const auto nan = static_cast<float>(kNan), infinity = static_cast<float>(kInfinity);
  EXPECT_FALSE(hold({1, nan}, {1, 2}, {0.5, 1}));
  EXPECT_FALSE(hold({1, nan}, {1, 2}, {0.5, kInfinity})) << "under any bound";
  EXPECT_FALSE(hold({1, nan}, {1, kNan}, {0.5, 1})) << "even where it is expected";
  EXPECT_FALSE(hold({1, infinity}, {1, 2}, {0.5, kInfinity}));
  EXPECT_FALSE(hold({1, 2}, {1, 2}, {0.5, kNan}));
  EXPECT_FALSE(hold({1, 2}, {1, 2}, {0.5, -1}));
  EXPECT_FALSE(hold({1, 2}, {1, 2}, {0.5, kInfinity})) << "a bound that holds nothing";
}

TEST(ParityComparator, WantsTheSameInfinity) {
  const auto infinity = static_cast<float>(kInfinity);
  EXPECT_TRUE(hold({1, -infinity}, {1, -kInfinity}, {0.5, 0}));
  EXPECT_FALSE(hold({1, infinity}, {1, -kInfinity}, {0.5, 0}));
  EXPECT_FALSE(hold({1, -3e38f}, {1, -kInfinity}, {0.5, kInfinity}));
}

TEST(ParityComparator, RefusesWhatProvesNothing) {
  EXPECT_FALSE(hold({}, {}, {})) << "nothing compared";
  EXPECT_FALSE(hold({0, 0}, {0, 0}, {0, 0})) << "a reference of zeros only";
  EXPECT_FALSE(hold({1, 2}, {1, 2}, {1, 2})) << "bounds as large as the values";
  EXPECT_FALSE(hold({1, 2}, {1}, {0})) << "different sizes";
  EXPECT_FALSE(hold({1}, {1, 2}, {0, 0}));
  EXPECT_FALSE(hold({1, 2}, {1, 2}, {0}));
}

TEST(ParityComparator, NoticesOneWrongElementAmongMany) {
  Floats actual(1000, 1e6f);
  const Doubles expected(1000, 1e6), bounds(1000, 1e-3);
  EXPECT_TRUE(hold(actual, expected, bounds));
  actual[617] = std::nextafter(1e6f, 2e6f);
  EXPECT_FALSE(hold(actual, expected, bounds));
}

TEST(ParityComparator, RefusesBoundsThatAreSlack) {
  Comparator loose("loose"), tight("tight"), exact("exact");
  // Errors of 2^-10 under bounds of 1 and 2^-5: 1,024 and 32 times as large.
  ASSERT_TRUE(loose.hold(Floats(9, 2 + 0x1p-10f), Doubles(9, 2), Doubles(9, 1)));
  ASSERT_TRUE(tight.hold(Floats(9, 2 + 0x1p-10f), Doubles(9, 2), Doubles(9, 0x1p-5)));
  EXPECT_EQ(loose.median_slack(), 1024);
  EXPECT_EQ(tight.median_slack(), 32);
  EXPECT_FALSE(loose.is_tight());
  EXPECT_TRUE(tight.is_tight());
  ASSERT_TRUE(exact.hold(Floats{2}, Doubles{2}, Doubles{0.5}));
  EXPECT_FALSE(exact.is_tight()) << "no error, nothing learnt about the bound";
}

TEST(ParityStorage, RoundsOnceAndReadsBack) {
  EXPECT_EQ(number(stored<cuda::Bfloat16>(1 + 0x1p-8 + 0x1p-40)), 1 + 0x1p-7) << "above the tie";
  EXPECT_EQ(number(stored<cuda::Float16>(1 + 0x1p-11)), 1) << "a tie, to even";
  EXPECT_EQ(number(stored<float>(1 + 0x1p-24)), 1);
  const Tensor tensor = random_tensor(1, 2, 3, 5), once = rounded<cuda::Bfloat16>(tensor),
               twice = rounded<cuda::Bfloat16>(once);
  EXPECT_NE(once.view().data[0], tensor.view().data[0]);
  EXPECT_TRUE(std::ranges::equal(twice.view().slice(1).row(2), once.view().slice(1).row(2)));
}

TEST(ParityBits, TellZerosAndNansApart) {
  EXPECT_TRUE(same_bits(Floats{static_cast<float>(kNan)}, Floats{static_cast<float>(kNan)}));
  EXPECT_FALSE(same_bits(Floats{0.0f}, Floats{-0.0f}));
  EXPECT_FALSE(same_bits(Floats{1}, Floats{1, 1}));
  EXPECT_FALSE(same_bits(std::vector<Floats>{{1}, {2}}, std::vector<Floats>{{1}, {3}}));
  EXPECT_TRUE(same_bits(std::vector<Floats>{{1}, {}}, std::vector<Floats>{{1}, {}}));
}

class ParityMemory : public DeviceTest {};

TEST_F(ParityMemory, OfAnOutputIsUnwrittenAtFirst) {
  const Output output(5);
  const Floats numbers = output.numbers();
  ASSERT_EQ(numbers.size(), 5u);
  for (const float entry : numbers) {
    EXPECT_TRUE(Output::is_unwritten(entry));
    EXPECT_TRUE(std::isnan(entry));
  }
  EXPECT_FALSE(Output::is_unwritten(static_cast<float>(kNan)));
}

TEST_F(ParityMemory, HoldsRowsPaddedWithZerosAndNanWhereNobodyMayRead) {
  Tensor tensor(2, 2, 3);
  for (double& entry : tensor.numbers()) entry = 7;
  const std::vector<int64_t> used{1, 2};
  const Uploaded<cuda::Float16> uploaded(tensor, 3, used);
  const cuda::DeviceTensor<const cuda::Float16> view = uploaded.view();
  ASSERT_EQ(view.rows, 3);
  ASSERT_GE(view.row_stride, cuda::padded<cuda::Float16>(3));
  std::vector<cuda::Float16> memory(2 * view.slice_stride);
  cuda::detail::download(memory.data(), view.data,
                         static_cast<int64_t>(memory.size() * sizeof(cuda::Float16)), nullptr);
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < view.row_stride; ++j) {
        const double entry = number(memory[s * view.slice_stride + i * view.row_stride + j]);
        if (i >= used[s] || j >= cuda::padded<cuda::Float16>(3)) {
          EXPECT_TRUE(std::isnan(entry)) << s << " " << i << " " << j;
        } else {
          EXPECT_EQ(entry, j < 3 ? 7 : 0) << s << " " << i << " " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbound::parity
