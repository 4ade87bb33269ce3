// Rows of the host's numbers in the type that stores them.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/support/stored_rows.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/float16.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

template <class T>
class StoredRowsTest : public DeviceTest {
 protected:
  static constexpr int64_t kRows = 9, kCols = 13, kStride = 20;

  // Bits of other numbers than the doubles, so that it can be seen which were taken.
  StoredRowsTest()
      : numbers_(rounded<T>(random_tensor(1, 1, kRows, kStride))),
        others_(rounded<T>(random_tensor(2, 1, kRows, kStride))) {
    for (const double number : others_.numbers()) {
      if constexpr (sizeof(T) == 2) {
        bits_.push_back(cuda::stored<T>(number).bits);
      } else {
        bits_.push_back(to_bfloat16(number));
      }
    }
  }

  MatrixView numbers() const { return {numbers_.numbers().data(), kRows, kCols, kStride}; }

  static std::vector<double> written(const cuda::HostRows<T>& rows) {
    std::vector<T> to(static_cast<size_t>(kRows * cuda::padded<T>(kCols)), cuda::stored<T>(7));
    cuda::store_rows(rows, to.data());
    std::vector<double> all;
    for (const T number : to) all.push_back(cuda::unstored(number));
    return all;
  }
  // Rows from `first` on, each followed by zeros, and what was there before behind the last one.
  static std::vector<double> expected(const Tensor& of, int64_t first) {
    std::vector<double> all;
    for (int64_t r = first; r < kRows; ++r) {
      for (int64_t c = 0; c < cuda::padded<T>(kCols); ++c) all.push_back(c < kCols ? of.slice(0)(r, c) : 0);
    }
    all.resize(static_cast<size_t>(kRows * cuda::padded<T>(kCols)), 7);
    return all;
  }

  Tensor numbers_, others_;
  std::vector<uint16_t> bits_;
};

TYPED_TEST_SUITE(StoredRowsTest, StorageTypes, );

TYPED_TEST(StoredRowsTest, AreRoundedAndPaddedWithZeros) {
  const cuda::HostRows<TypeParam> rows(this->numbers(), Dtype::f64, nullptr);
  EXPECT_EQ(this->written(rows), this->expected(this->numbers_, 0));
  EXPECT_EQ(this->written(rows.middle(4, 5)), this->expected(this->numbers_, 4));
}

// Of 32 bits there are none.
TYPED_TEST(StoredRowsTest, AreTheRecordedBitsOfTheSameType) {
  const Tensor& taken = sizeof(TypeParam) == 2 ? this->others_ : this->numbers_;
  const cuda::HostRows<TypeParam> rows(this->numbers(), cuda::dtype_of<TypeParam>, this->bits_.data());
  EXPECT_EQ(this->written(rows), this->expected(taken, 0));
  EXPECT_EQ(this->written(rows.middle(4, 5)), this->expected(taken, 4));
}

TYPED_TEST(StoredRowsTest, AreNotTheBitsOfAnotherType) {
  const Dtype another = cuda::dtype_of<TypeParam> == Dtype::bf16 ? Dtype::f16 : Dtype::bf16;
  const std::vector<uint16_t> bits(TestFixture::kRows * TestFixture::kStride, 0x4321);
  const cuda::HostRows<TypeParam> rows(this->numbers(), another, bits.data());
  EXPECT_EQ(this->written(rows), this->expected(this->numbers_, 0));
}

}  // namespace
}  // namespace kvbound::parity
