// The operations of a layer but for attention, compared with the same in double precision.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/traces/models/gguf.hpp>
#include <kvbound/traces/models/linear.hpp>

#include "support/gguf_bytes.hpp"

namespace kvbound::traces::linear_test {
namespace {

// Rows of numbers from -1 to 1 that look random.
struct Numbers {
  std::vector<float> all;
  int64_t rows, cols;

  Numbers(int64_t own_rows, int64_t own_cols, uint32_t seed)
      : all(own_rows * own_cols), rows(own_rows), cols(own_cols) {
    for (float& number : all) {
      seed = seed * 1664525 + 1013904223;
      number = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1;
    }
  }
  MutableSingleMatrixView view() { return {all.data(), rows, cols}; }
  float operator()(int64_t i, int64_t c) const { return all[i * cols + c]; }
};

// A matrix as the F32 weight of a file.
class StoredWeight {
 public:
  explicit StoredWeight(const Numbers& matrix) : file_(folder_.write("w.gguf", bytes(matrix))) {}
  Weight weight() const { return file_.weight(*file_.find("w")); }

 private:
  static std::string bytes(const Numbers& matrix) {
    test::GgufParts parts;
    parts.tensors.push_back(
        {"w",
         {static_cast<uint64_t>(matrix.cols), static_cast<uint64_t>(matrix.rows)},
         0,
         std::string(reinterpret_cast<const char*>(matrix.all.data()), matrix.all.size() * sizeof(float))});
    return parts.bytes();
  }
  test::TemporaryFolder folder_;
  GgufFile file_;
};

constexpr double kUnit = 0x1p-24;

// Every number is within (cols + 2) u sum |w x|, for any order of summation.
void require_product(int64_t rows, int64_t weight_rows) {
  constexpr int64_t kCols = 40;
  const Numbers matrix(weight_rows, kCols, 1);
  Numbers x(rows, kCols, 2), y(rows, weight_rows, 3);
  linear({{StoredWeight(matrix).weight(), y.view()}}, x.view(), rows);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t r = 0; r < weight_rows; ++r) {
      double expected = 0, size = 0;
      for (int64_t c = 0; c < kCols; ++c) {
        const double term = double{matrix(r, c)} * x(i, c);
        expected += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(y(i, r), expected, (kCols + 2) * kUnit * size)
          << "row " << i << " of x, row " << r << " of the weight";
    }
  }
}

TEST(Linear, IsTheProductInEveryShapeOfBlocks) {
  for (const int64_t rows : {1, 63, 64, 130}) {
    // blocks of 16 rows or a multiple, at most 512 where x has many rows and 1,638 where it has few
    for (const int64_t weight_rows : {1, 16, 17, 511, 512, 513, 1100, 1700})
      require_product(rows, weight_rows);
  }
}

TEST(Linear, OfSeveralWeightsIsThatOfEach) {
  const StoredWeight one(Numbers(700, 40, 1)), other(Numbers(30, 40, 2));
  Numbers x(70, 40, 3), first(70, 700, 4), second(70, 30, 5), alone = second;
  linear({{one.weight(), first.view()}, {other.weight(), second.view()}}, x.view(), 70);
  linear({{other.weight(), alone.view()}}, x.view(), 70);
  EXPECT_EQ(second.all, alone.all);
  Numbers first_alone(70, 700, 6);
  linear({{one.weight(), first_alone.view()}}, x.view(), 70);
  EXPECT_EQ(first.all, first_alone.all);
}

TEST(Linear, OfAPieceHasTheSameBitsWhateverStandsBesideIt) {
  for (const int64_t piece : {1, 5, 67, 130}) {
    const Numbers matrix(400, 40, 1);
    const StoredWeight stored(matrix);
    Numbers x(3 * piece + 1, 40, 2), y(x.rows, 400, 3), alone(piece, 400, 4);
    std::copy_n(x.all.begin() + piece * 40, piece * 40, x.all.begin() + 2 * piece * 40);
    linear({{stored.weight(), y.view()}}, x.view(), piece);
    linear({{stored.weight(), alone.view()}}, x.view().middle_rows(piece, piece), piece);
    for (int64_t i = 0; i < piece; ++i) {
      for (int64_t r = 0; r < 400; ++r) {
        ASSERT_EQ(y(piece + i, r), alone(i, r)) << "piece of " << piece << ", row " << i;
        ASSERT_EQ(y(2 * piece + i, r), alone(i, r)) << "piece of " << piece << ", row " << i;
      }
    }
  }
}

TEST(Linear, RefusesOtherShapes) {
  const StoredWeight stored(Numbers(3, 4, 1));
  Numbers x(2, 4, 2), y(2, 3, 3), narrow(2, 3, 4), wide(2, 5, 5);
  EXPECT_THROW(linear({{stored.weight(), y.view()}}, narrow.view(), 1), ShapeMismatch);
  EXPECT_THROW(linear({{stored.weight(), wide.view()}}, x.view(), 1), ShapeMismatch);
}

TEST(AddBias, AddsTheSameToEveryRow) {
  const Numbers bias(1, 7, 1), before(3, 7, 2);
  Numbers x = before;
  add_bias(StoredWeight(bias).weight(), x.view());
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t c = 0; c < 7; ++c) EXPECT_EQ(x(i, c), before(i, c) + bias(0, c));
  }
}

TEST(RmsNorm, IsTheFormula) {
  const Numbers scale(1, 24, 1), x(5, 24, 2);
  Numbers y = x;
  rms_norm(StoredWeight(scale).weight(), 0.25, y.view(), y.view());
  for (int64_t i = 0; i < 5; ++i) {
    double squares = 0;
    for (int64_t c = 0; c < 24; ++c) squares += double{x(i, c)} * x(i, c);
    for (int64_t c = 0; c < 24; ++c) {
      const double expected = x(i, c) / std::sqrt(squares / 24 + 0.25) * scale(0, c);
      EXPECT_NEAR(y(i, c), expected, 3 * kUnit * std::abs(expected));
    }
  }
}

TEST(SwishGate, IsTheFormula) {
  const Numbers gate(4, 9, 1), up(4, 9, 2);
  Numbers result = gate, factor = up;
  for (float& number : result.all) number *= 100;  // exp overflows single precision
  result.all[0] = -90;
  const Numbers large = result;
  swish_gate(result.view(), factor.view());
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t c = 0; c < 9; ++c) {
      const double g = large(i, c), expected = g / (1 + std::exp(-g)) * up(i, c);
      // The exponential is off by 1.9 u, or by 2^-150 where it is subnormal; a sum, a quotient and two
      // products are rounded.
      EXPECT_NEAR(result(i, c), expected, 6 * kUnit * std::abs(expected) + (1 + std::abs(g)) * 0x1p-149);
    }
  }
}

TEST(Add, AddsElements) {
  Numbers x(3, 5, 1), y(3, 5, 2);
  const Numbers before = x;
  add(x.view(), y.view());
  for (size_t i = 0; i < x.all.size(); ++i) EXPECT_EQ(x.all[i], before.all[i] + y.all[i]);
}

}  // namespace
}  // namespace kvbound::traces::linear_test
