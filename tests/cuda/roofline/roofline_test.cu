// The kernels that measure the rooflines for bench do the work that they claim. One source: run emulated
// everywhere, and natively on a GPU.
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/roofline/roofline.hpp>
#include <kvbound/cuda/support/recording.hpp>
#include <kvbound/cuda/support/timer.hpp>
#include <kvbound/reference/core/float16.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class Ceilings : public DeviceTest {};

TEST_F(Ceilings, ACopyIsOfAllBytesAndOfNoOthers) {
  constexpr int64_t kBytes = 1000, kBefore = 256, kAfter = 7;
  std::vector<unsigned char> numbers(kBytes), around(kBefore + kBytes + kAfter, 3);
  std::iota(numbers.begin(), numbers.end(), static_cast<unsigned char>(5));
  const Buffer<unsigned char> from = upload(numbers);
  Buffer<unsigned char> to = upload(around);
  copy(to.data() + kBefore, from.data(), kBytes, nullptr);
  synchronise(nullptr);
  std::copy(numbers.begin(), numbers.end(), around.begin() + kBefore);
  EXPECT_EQ(download(to), around);
}

TEST_F(Ceilings, ARecordedCopyIsMadeAgain) {
  Buffer<unsigned char> from = upload(std::vector<unsigned char>(64, 1)), to(64);
  Recording recording;
  for (unsigned char number = 1; number <= 4; ++number) {
    from.upload(std::vector<unsigned char>(64, number));
    recording.run(nullptr, [&](Stream stream) { copy(to.data(), from.data(), 64, stream); });
    EXPECT_EQ(download(to), std::vector<unsigned char>(64, number));
  }
}

#ifndef KVBOUND_CUDA_NATIVE
TEST_F(Ceilings, ACopyBeyondABufferIsAnError) {
  const Buffer<unsigned char> from(16);
  Buffer<unsigned char> to(15);
  EXPECT_THROW(copy(to.data(), from.data(), 16, nullptr), DeviceError);
}
#endif

// The operands of tensor_products, all equal to this number rounded to bfloat16.
std::vector<uint32_t> operands_of(double number) {
  const uint32_t bits = to_bfloat16(number);
  return std::vector<uint32_t>(kProductOperands, bits | bits << 16);
}

double sum_of_products(const std::vector<uint32_t>& operands, int64_t repeats) {
  const Buffer<uint32_t> on_device = upload(operands);
  Buffer<float> sums(tensor_product_threads());
  tensor_products(on_device.data(), repeats, sums.data(), nullptr);
  const std::vector<float> numbers = download(sums);
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

TEST_F(Ceilings, ProductsOfOnesAddUpToHalfTheirFlop) {
  for (const int64_t repeats : {0, 1, 3}) {
    EXPECT_EQ(sum_of_products(operands_of(1), repeats), tensor_product_flop(repeats) / 2) << repeats;
  }
}

TEST_F(Ceilings, EveryOperandTakesPartInItsProducts) {
  const double all = sum_of_products(operands_of(1), 1);
  for (int64_t word = 0; word < kProductOperands / 32; ++word) {
    std::vector<uint32_t> without = operands_of(1);
    std::fill_n(without.begin() + 32 * word, 32, 0U);
    // A register of A holds a quarter of a matrix that 4 of the 16 products use, one of
    // B half of such a matrix.
    const double share = word < 16 ? 1.0 / 16 : 1.0 / 8;
    EXPECT_EQ(sum_of_products(without, 1), all * (1 - share)) << "word " << word;
  }
}

TEST_F(Ceilings, ProductsOccupyEveryMultiprocessor) {
  EXPECT_GE(tensor_product_threads(), 512 * int64_t{device().multiprocessors});
}

TEST_F(Ceilings, ATimerSeesWhatIsBetweenItsMarks) {
  const auto seconds = [](int64_t repeats) {
    const Buffer<uint32_t> operands = upload(operands_of(1));
    Buffer<float> sums(tensor_product_threads());
    Timer timer;
    tensor_products(operands.data(), 1, sums.data(), nullptr);
    timer.start(nullptr);
    tensor_products(operands.data(), repeats, sums.data(), nullptr);
    timer.stop(nullptr);
    tensor_products(operands.data(), repeats, sums.data(), nullptr);
    return timer.seconds();
  };
#ifdef KVBOUND_CUDA_NATIVE
  constexpr int64_t kShort = 4096;
#else
  constexpr int64_t kShort = 1;
#endif
  const double once = seconds(kShort);
  EXPECT_GT(once, 0);
  EXPECT_GT(seconds(8 * kShort), once);
}

TEST_F(Ceilings, AMatrixLibraryMultipliesOrSaysWhyThereIsNone) {
  std::string why;
  const auto library = MatrixLibrary::open(&why);
  if (!library) {
    EXPECT_NE(why, "");
    return;
  }
  constexpr int64_t kSide = 64;
  std::vector<Bfloat16> a(kSide * kSide), b(kSide * kSide);
  for (int64_t i = 0; i < kSide * kSide; ++i) {  // small integers: exact; no symmetric matrix
    a[i] = {to_bfloat16(static_cast<double>(i % 7 - 3))};
    b[i] = {to_bfloat16(static_cast<double>(i % 5 - 2))};
  }
  Buffer<Bfloat16> product(kSide * kSide);
  library->multiply(upload(a).data(), upload(b).data(), product.data(), kSide, nullptr);
  const std::vector<Bfloat16> result = download(product);
  for (int64_t row = 0; row < kSide; ++row) {
    for (int64_t col = 0; col < kSide; ++col) {
      double expected = 0;
      for (int64_t k = 0; k < kSide; ++k) {
        expected += from_bfloat16(a[row * kSide + k].bits) * from_bfloat16(b[k * kSide + col].bits);
      }
      ASSERT_EQ(from_bfloat16(result[row * kSide + col].bits), from_bfloat16(to_bfloat16(expected)));
    }
  }
}

// Sides that differ, so that a matrix taken for its transpose shows.
TEST_F(Ceilings, AMatrixLibraryMultipliesMatricesOfAnyShape) {
  std::string why;
  const auto library = MatrixLibrary::open(&why);
  if (!library) {
    EXPECT_NE(why, "");
    return;
  }
  constexpr int64_t kRows = 24, kInner = 16, kCols = 40;
  std::vector<Bfloat16> a(kRows * kInner), b(kInner * kCols);
  for (size_t i = 0; i < a.size(); ++i) a[i] = {to_bfloat16(static_cast<double>(i % 7) - 3)};
  for (size_t i = 0; i < b.size(); ++i) b[i] = {to_bfloat16(static_cast<double>(i % 11) - 5)};
  Buffer<float> product(kRows * kCols);
  library->multiply(upload(a).data(), upload(b).data(), product.data(), {kRows, kInner, kCols}, nullptr);
  const std::vector<float> result = download(product);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; ++col) {
      double expected = 0;
      for (int64_t k = 0; k < kInner; ++k) {
        expected += from_bfloat16(a[row * kInner + k].bits) * from_bfloat16(b[k * kCols + col].bits);
      }
      ASSERT_EQ(result[row * kCols + col], expected) << row << ", " << col;
    }
  }
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
