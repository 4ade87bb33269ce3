// elementwise, largest, directions, row norms and scaled averages, on numbers that can be checked by hand and
// at lengths around a vector's width.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/directions.hpp>
#include <kvbound/reference/numerics/elementwise.hpp>
#include <kvbound/reference/numerics/largest.hpp>
#include <kvbound/reference/numerics/row_norms.hpp>
#include <kvbound/reference/numerics/scaled_averages.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::vectors_test {
namespace {

using test::matrix;
using test::Random;
using Numbers = std::vector<double>;

constexpr size_t kLengths[] = {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 100};

Numbers random_numbers(size_t count, uint64_t seed) {
  Random random(seed);
  Numbers numbers(count);
  for (double& number : numbers) number = random.normal();
  return numbers;
}

TEST(Elementwise, IsTheScalarLoopAtEveryLength) {
  for (const size_t count : kLengths) {
    const Numbers terms = random_numbers(count, 1 + count), start = random_numbers(count, 200 + count);
    Numbers divided = terms, added = start, quotients = start;
    divide(divided, 3);
    add(terms, added);
    add_quotients(terms, 3, quotients);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(divided[i], terms[i] / 3);
      EXPECT_EQ(added[i], start[i] + terms[i]);
      EXPECT_EQ(quotients[i], start[i] + terms[i] / 3);
    }
  }
}

TEST(Elementwise, DividesEveryRow) {
  const Matrix half = quotient(matrix({{2, 4}, {6, 8}}), 2);
  EXPECT_EQ(Numbers(half.numbers().begin(), half.numbers().end()), (Numbers{1, 2, 3, 4}));
}

TEST(Largest, IsTheMaximumWhereverItStands) {
  for (const size_t count : kLengths) {
    Numbers numbers = random_numbers(count, 7 + count);
    for (size_t at = 0; at < count; ++at) {
      const double before = std::exchange(numbers[at], 99);
      EXPECT_EQ(largest(numbers).value, 99);
      EXPECT_EQ(largest_of(numbers), 99);
      EXPECT_TRUE(largest(numbers).all_finite());
      numbers[at] = before;
    }
  }
  EXPECT_EQ(largest_of({}), -kInfinity);
}

TEST(Largest, TellsWhatIsNotFinite) {
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    for (size_t at = 0; at < 40; ++at) {
      Numbers numbers(40, 1.0);
      numbers[at] = bad;
      EXPECT_FALSE(largest(numbers).all_finite()) << bad << " at " << at;
    }
  }
}

TEST(AllFinite, TellsOneNumberOfMany) {
  for (const size_t count : kLengths) {
    std::vector<float> numbers(count, -std::numeric_limits<float>::max());
    EXPECT_TRUE(all_finite(numbers));
    for (const double bad : {kInfinity, -kInfinity, std::nan(""), -std::nan("")}) {
      for (size_t at = 0; at < count; ++at) {
        const float before = std::exchange(numbers[at], static_cast<float>(bad));
        EXPECT_FALSE(all_finite(numbers)) << bad << " at " << at << " of " << count;
        numbers[at] = before;
      }
    }
  }
}

TEST(RowNorms, AreThoseOfTheProduct) {
  const Matrix rows = matrix({{1, 0}, {0, -2}, {1, 1}}), factor = matrix({{3, -4}, {1, 1}});
  EXPECT_EQ(row_norms(rows, factor, Norm::l1), (Numbers{7, 4, 7}));
  EXPECT_EQ(row_norms(rows, factor, Norm::l2), (Numbers{5, std::sqrt(8.0), 5}));
}

TEST(RowNorms, OfSeveralProductsAreThoseOfEach) {
  Random random(3);
  const Matrix first = random.matrix(300, 5), second = random.matrix(300, 5), a = random.matrix(5, 600),
               b = random.matrix(5, 600);
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    const std::vector<RowProduct> products{{first, a}, {second, b}};
    const Matrix both = row_norms(products, norm);
    EXPECT_EQ(Numbers(both.row(0).begin(), both.row(0).end()), row_norms(first, a, norm));
    EXPECT_EQ(Numbers(both.row(1).begin(), both.row(1).end()), row_norms(second, b, norm));
  }
}

TEST(RowNorms, RefuseWhatDoesNotFit) {
  EXPECT_THROW(row_norms(Matrix(2, 3), Matrix(2, 3), Norm::l1), ShapeMismatch);
  EXPECT_TRUE(row_norms(Matrix(0, 3), Matrix(3, 4), Norm::l2).empty());
}

TEST(Directions, HaveLengthOneWhateverTheSize) {
  for (const double size : {0x1p-1000, 1.0, 0x1p1000}) {
    const Numbers x{3 * size, -4 * size};
    EXPECT_EQ(length(x), 5 * size);
    Numbers unit(2);
    fill_direction(x, unit);
    EXPECT_EQ(unit, (Numbers{0.6, -0.8}));
    EXPECT_EQ(cosine(x, length(x), x, length(x)), 1);
  }
  EXPECT_EQ(cosine(Numbers{0, 0}, 0, Numbers{1, 0}, 1), 0);
}

TEST(Directions, ShowEveryCosineOnce) {
  Random random(5);
  const Matrix rows = random.matrix(3, 4), others = random.matrix(600, 4);
  Matrix seen(3, 600), times(3, 600);
  visit_cosines(rows, others, [&](int64_t row, int64_t first, std::span<double> cosines) {
    for (size_t j = 0; j < cosines.size(); ++j) {
      seen(row, first + static_cast<int64_t>(j)) = cosines[j];
      times(row, first + static_cast<int64_t>(j)) += 1;
    }
  });
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 600; ++j) {
      EXPECT_EQ(times(i, j), 1);
      EXPECT_NEAR(seen(i, j), cosine(rows.row(i), length(rows.row(i)), others.row(j), length(others.row(j))),
                  1e-14);
    }
  }
}

TEST(ScaledAverages, DecayTowardsNewNumbers) {
  for (const size_t count : {size_t{1}, size_t{8}, size_t{19}}) {
    ScaledAverages averages;
    for (size_t j = 0; j < count; ++j) averages.append();
    Numbers scratch(count);
    ASSERT_TRUE(decay_towards(Numbers(count, 0.0), 0.5, averages, scratch));
    ASSERT_TRUE(decay_towards(Numbers(count, std::log(3.0)), 0.5, averages, scratch));
    for (size_t j = 0; j < count; ++j) {  // 0.5 (0.5 * 1) + 0.5 * 3
      EXPECT_NEAR(averages.mantissas[j] * std::exp(averages.exponents[j]), 1.75, 1e-15);
    }
  }
}

TEST(ScaledAverages, ChangeNothingForWhatIsNotFinite) {
  ScaledAverages averages;
  averages.append();
  Numbers scratch(1);
  ASSERT_TRUE(decay_towards(Numbers{2}, 0.5, averages, scratch));
  const ScaledAverages before = averages;
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_FALSE(decay_towards(Numbers{bad}, 0.5, averages, scratch));
    EXPECT_EQ(averages.exponents, before.exponents);
    EXPECT_EQ(averages.mantissas, before.mantissas);
  }
}

}  // namespace
}  // namespace kvbound::reference::vectors_test
