// Gram matrices and squared lengths of values within bounds that follow from the rounding of their sums.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/value_space.hpp>

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
  // {Gram matrices, squared lengths after W^O, squared lengths before it}
  static std::vector<std::vector<float>> run(const Case& c, const Tensor& projection, const Tensor& values) {
    const Uploaded<T> device_projection(projection), device_values(values);
    Output gram(c.query_heads() * c.head_dim * c.head_dim), projected(c.query_heads() * c.tokens),
        head(c.query_heads() * c.tokens);
    cuda::gram_matrices<T>(device_projection.view(), gram.data(), nullptr);
    cuda::squared_norms<T>(device_values.view(), gram.data(), c.query_heads(), projected.data(), nullptr);
    cuda::squared_norms<T>(device_values.view(), nullptr, c.query_heads(), head.data(), nullptr);
    return {gram.numbers(), projected.numbers(), head.numbers()};
  }

  void expect_parity(const Case& c) {
    const Tensor projection = rounded<T>(random_tensor(1, c.query_heads(), c.head_dim, c.model_dim));
    const Tensor values = rounded<T>(random_tensor(2, c.kv_heads, c.tokens, c.head_dim));
    const std::vector<std::vector<float>> results =
        in_every_schedule([&] { return run(c, projection, values); });
    for (int64_t h = 0; h < c.query_heads(); ++h) {
      hold_gram(c, projection.slice(h), std::span(results[0]).subspan(h * c.head_dim * c.head_dim));
      const MatrixView own = values.slice(h / c.group_size);
      hold_lengths(c, own, projection.slice(h), std::span(results[1]).subspan(h * c.tokens, c.tokens));
      hold_lengths(c, own, {}, std::span(results[2]).subspan(h * c.tokens, c.tokens));
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
  // The error of a squared length, as a share of the sum of its terms' absolute values.
  static double of_length(const Case& c, bool projected) {
    if (!projected) return of_additions(c.head_dim);
    const KernelArithmetic lengths = arithmetic(c);
    return lengths.tensor_lengths + (1 + lengths.tensor_lengths) * of_additions(lengths.length_depth);
  }

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

  // projection  no rows: the head's space
  void hold_lengths(const Case& c, MatrixView values, MatrixView projection, std::span<const float> actual) {
    const bool projected = projection.rows > 0;
    const reference::ValueSpace space =
        projected ? reference::ValueSpace(Space::projected, projection) : reference::ValueSpace();
    const std::vector<double> expected = space.squared_norms(values);
    std::vector<double> bounds;
    for (int64_t t = 0; t < c.tokens; ++t) {
      double size = 0;  // || |v| |W| ||^2
      for (int64_t m = 0; m < (projected ? c.model_dim : c.head_dim); ++m) {
        double column = 0;
        for (int64_t d = 0; projected && d < c.head_dim; ++d)
          column += std::abs(values(t, d) * projection(d, m));
        if (!projected) column = std::abs(values(t, m));
        size += column * column;
      }
      bounds.push_back(of_length(c, projected) * size + 0x1p-120);
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

// Every token meets one number of G alone, on the diagonal or twice beside it, so that no sum rounds.
template <class T>
void expect_exact_lengths(int64_t head_dim, int64_t shift, float of_value, float of_g) {
  Tensor values(1, head_dim, head_dim);
  std::vector<float> gram(head_dim * head_dim);
  for (int64_t n = 0; n < head_dim; ++n) {
    const int64_t other = (n + shift) % head_dim;
    values.slice(0)(n, n) = values.slice(0)(n, other) = of_value;
    gram[n * head_dim + other] = gram[other * head_dim + n] = of_g;
  }
  const Uploaded<T> device_values(values);
  const cuda::Buffer<float> device_gram{std::span<const float>(gram)};
  Output norms(head_dim);
  cuda::squared_norms<T>(device_values.view(), device_gram.data(), 1, norms.data(), nullptr);
  const float expected = (shift == 0 ? 1 : 2) * of_g * of_value * of_value;
  EXPECT_EQ(norms.numbers(), std::vector<float>(head_dim, expected))
      << "head_dim " << head_dim << ", shift " << shift;
}

TYPED_TEST(ValueSpaceParity, EveryNumberCountsWithAllItsBits) {
  const bool short_numbers = std::is_same_v<TypeParam, cuda::Bfloat16>;
  const float of_value = short_numbers ? 0x1.aap0F : 0x1.abcp0F;  // all bits of BF16 and of FP16
  for (const int64_t head_dim : {10, 80, 128, 256}) {
    for (const int64_t shift : {int64_t{0}, int64_t{1}, head_dim / 2, head_dim - 1}) {
      expect_exact_lengths<TypeParam>(head_dim, shift, 1, 0x1.abcdeep0F);
      expect_exact_lengths<TypeParam>(head_dim, shift, of_value, 1);
    }
  }
}

TYPED_TEST(ValueSpaceParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> wide(Tensor(2, 257, 4)), values(Tensor(2, 5, 8)), wide_values(Tensor(2, 5, 257));
  EXPECT_THROW(cuda::gram_matrices<T>(wide.view(), nullptr, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::squared_norms<T>(values.view(), nullptr, 3, nullptr, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::squared_norms<T>(wide_values.view(), nullptr, 2, nullptr, nullptr), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
