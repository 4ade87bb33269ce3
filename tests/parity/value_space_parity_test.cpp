// Gram matrices, their factors and squared lengths of values within bounds that follow from their rounding.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/value_space.hpp>
#include <kvbound/reference/numerics/gram_factor.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "support.hpp"

namespace kvbound::parity {
namespace {

struct Case {
  int64_t kv_heads = 2;
  int64_t group_size = 2;
  int64_t head_dim = 10;
  int64_t model_dim = 33;
  int64_t tokens = 33;

  int64_t query_heads() const { return kv_heads * group_size; }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.kv_heads << " x " << c.group_size << " heads of " << c.head_dim << ", model_dim "
             << c.model_dim << ", " << c.tokens << " tokens";
}

template <class T>
class ValueSpaceParity : public DeviceTest {
 protected:
  // {Gram matrices, factors, squared lengths after W^O, squared lengths before it}
  static std::vector<std::vector<float>> run(const Case& c, const Tensor& projection, const Tensor& values) {
    const Uploaded<T> device_projection(projection), device_values(values);
    const int64_t numbers = c.query_heads() * c.head_dim * c.head_dim;
    Output gram(numbers), factor(numbers), projected(c.query_heads() * c.tokens),
        head(c.query_heads() * c.tokens);
    WorkingMemory memory(cuda::gram_matrices_workspace(c.query_heads(), c.head_dim));
    cuda::gram_matrices<T>(device_projection.view(), gram.data(), factor.data(), memory.view(), nullptr);
    cuda::squared_norms<T>(device_values.view(), factor.data(), c.query_heads(), projected.data(), nullptr);
    cuda::squared_norms<T>(device_values.view(), nullptr, c.query_heads(), head.data(), nullptr);
    return {gram.numbers(), factor.numbers(), projected.numbers(), head.numbers()};
  }

  void expect_parity(const Case& c) {
    const Tensor projection = rounded<T>(random_tensor(1, c.query_heads(), c.head_dim, c.model_dim));
    const Tensor values = rounded<T>(random_tensor(2, c.kv_heads, c.tokens, c.head_dim));
    const std::vector<std::vector<float>> results =
        in_every_schedule([&] { return run(c, projection, values); });
    for (int64_t h = 0; h < c.query_heads(); ++h) {
      const int64_t squares = c.head_dim * c.head_dim;
      hold_gram(c, projection.slice(h), std::span(results[0]).subspan(h * squares));
      hold_factor(c, projection.slice(h), std::span(results[1]).subspan(h * squares, squares));
      const MatrixView own = values.slice(h / c.group_size);
      hold_lengths(c, own, projection.slice(h), std::span(results[2]).subspan(h * c.tokens, c.tokens));
      hold_lengths(c, own, {}, std::span(results[3]).subspan(h * c.tokens, c.tokens));
    }
  }

  void expect_tight() const {
    EXPECT_TRUE(gram_.is_tight());
    EXPECT_TRUE(lengths_.is_tight());
  }

  Comparator gram_{"gram_matrices " + StorageName::GetName<T>(0)};
  Comparator lengths_{"squared_norms " + StorageName::GetName<T>(0)};

 private:
  static double of_additions(int64_t depth) {
    return reference::sum_rounding(depth + 2, reference::single_precision());
  }
  static KernelArithmetic arithmetic(const Case& c) { return cuda::value_space_arithmetic<T>(c.head_dim); }
  void hold_gram(const Case& c, MatrixView projection, std::span<const float> actual) {
    std::vector<double> expected, bounds;
    for (int64_t i = 0; i < c.head_dim; ++i) {
      for (int64_t j = 0; j < c.head_dim; ++j) {
        double sum = 0, size = 0;
        for (int64_t m = 0; m < c.model_dim; ++m) {
          sum += projection(i, m) * projection(j, m);
          size += std::abs(projection(i, m) * projection(j, m));
        }
        expected.push_back(sum);
        bounds.push_back(0x1p-24 * std::abs(sum) + (1 + static_cast<double>(c.model_dim)) * 0x1p-52 * size +
                         0x1p-149);
      }
    }
    EXPECT_TRUE(gram_.hold(actual.first(expected.size()), expected, bounds)) << c;
  }

  // The product of the factor's rows is G, but for its shift and rounding.
  void hold_factor(const Case& c, MatrixView projection, std::span<const float> factor) {
    const double off = reference::gram_factor_error(c.head_dim, c.model_dim) + 0x1.02p-23;
    for (int64_t k = 0; k < c.head_dim; ++k) {
      const std::span<const float> row = factor.subspan(k * c.head_dim, c.head_dim);
      EXPECT_GT(row[k], 0) << c;
      for (int64_t i = k + 1; i < c.head_dim; ++i) EXPECT_EQ(row[i], 0) << c;
      for (int64_t other = 0; other <= k; ++other) {
        double sum = 0;
        for (int64_t i = 0; i <= other; ++i) sum += double{row[i]} * factor[other * c.head_dim + i];
        ASSERT_NEAR(sum, reference::inner_product(projection.row(k), projection.row(other)),
                    off * reference::norm(projection.row(k)) * reference::norm(projection.row(other)))
            << c << ", rows " << k << " and " << other;
      }
    }
  }

  // projection  no rows: the head's space
  void hold_lengths(const Case& c, MatrixView values, MatrixView projection, std::span<const float> actual) {
    const bool projected = projection.rows > 0;
    const reference::ValueSpace space =
        projected ? reference::ValueSpace(Space::projected, projection) : reference::ValueSpace();
    const std::vector<double> expected = space.squared_norms(values);
    const KernelArithmetic own = arithmetic(c);
    const double sums = of_additions(projected ? own.length_depth : c.head_dim),
                 products = own.tensor_lengths + of_additions(own.length_depth);
    std::vector<double> bounds;
    for (int64_t t = 0; t < c.tokens; ++t) {
      double bound = sums * expected[t] + 0x1p-120, whole = 0;  // sum_k |v_k| || W_k ||
      for (int64_t k = 0; projected && k < c.head_dim; ++k)
        whole += std::abs(values(t, k)) * reference::norm(projection.row(k));
      const double moved = products * whole;
      bound += (2 * std::sqrt(expected[t]) + moved) * moved * (1 + sums);
      bounds.push_back(bound + reference::gram_factor_error(c.head_dim, c.model_dim) * whole * whole);
    }
    EXPECT_TRUE(lengths_.hold(actual, expected, bounds)) << c;
  }
};
TYPED_TEST_SUITE(ValueSpaceParity, StorageTypes, StorageName);

TYPED_TEST(ValueSpaceParity, MatchesReferenceAcrossSizes) {
  for (const int64_t tokens : {1, 15, 16, 17, 31, 32, 33, 200}) this->expect_parity({.tokens = tokens});
  for (const int64_t model_dim : {1, 31, 32, 33, 500}) this->expect_parity({.model_dim = model_dim});
  this->expect_tight();
}

TYPED_TEST(ValueSpaceParity, MatchesReferenceAcrossHeadDims) {
  for (const int64_t head_dim : {1, 8, 31, 32, 33, 64, 80, 128, 256}) {
    this->expect_parity({.kv_heads = 1, .head_dim = head_dim, .tokens = 20});
  }
  this->expect_tight();
}

TYPED_TEST(ValueSpaceParity, MatchesReferenceAcrossGroups) {
  for (const int64_t group_size : {1, 3, 7}) this->expect_parity({.kv_heads = 3, .group_size = group_size});
}

// Every token meets one number of L alone, `left` of the diagonal, so that no sum rounds.
template <class T>
void expect_exact_lengths(int64_t head_dim, int64_t left, float of_value, float of_factor) {
  Tensor values(1, head_dim, head_dim);
  std::vector<float> factor(head_dim * head_dim);
  for (int64_t n = 0; n < head_dim; ++n) {
    values.slice(0)(n, n) = of_value;
    factor[n * head_dim + std::max(n - left, int64_t{0})] = of_factor;
  }
  const Uploaded<T> device_values(values);
  const cuda::Buffer<float> device_factor{std::span<const float>(factor)};
  Output norms(head_dim);
  cuda::projected_value_norms_l2<T>(device_values.view(), device_factor.data(), 1, norms.data(), nullptr);
  const float number = of_value * of_factor, square = number * number;
  EXPECT_EQ(norms.numbers(), std::vector<float>(head_dim, std::sqrt(square)))
      << "head_dim " << head_dim << ", left " << left;
}

TYPED_TEST(ValueSpaceParity, EveryNumberCountsWithAllItsBits) {
  const bool short_numbers = std::is_same_v<TypeParam, cuda::Bfloat16>;
  const float of_value = short_numbers ? 0x1.aap0F : 0x1.abcp0F;  // all bits of BF16 and of FP16
  for (const int64_t head_dim : {10, 80, 128, 256}) {
    for (const int64_t left : {int64_t{0}, int64_t{1}, head_dim / 2, head_dim - 1}) {
      expect_exact_lengths<TypeParam>(head_dim, left, 1, 0x1.abcdeep0F);
      expect_exact_lengths<TypeParam>(head_dim, left, of_value, 1);
    }
  }
}

TYPED_TEST(ValueSpaceParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> wide(Tensor(2, 257, 4)), values(Tensor(2, 5, 8)), wide_values(Tensor(2, 5, 257));
  EXPECT_THROW(cuda::gram_matrices<T>(wide.view(), nullptr, nullptr, {}, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::gram_matrices<T>(values.view(), nullptr, nullptr, {}, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::projected_value_norms_l2<T>(values.view(), nullptr, 3, nullptr, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::squared_norms<T>(values.view(), nullptr, 3, nullptr, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::squared_norms<T>(wide_values.view(), nullptr, 2, nullptr, nullptr), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
