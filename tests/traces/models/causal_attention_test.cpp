// Blocked attention in single precision, compared with the reference's in double.
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/traces/models/causal_attention.hpp>

namespace kvbound::traces::causal_attention_test {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 8;

// Numbers from -1 to 1 that look random.
std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> all(count);
  for (float& number : all) {
    seed = seed * 1664525 + 1013904223;
    number = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return all;
}

Matrix widened(SingleMatrixView view) {
  Matrix matrix(view.rows, view.cols);
  for (int64_t i = 0; i < view.rows; ++i) {
    for (int64_t c = 0; c < view.cols; ++c) matrix(i, c) = view(i, c);
  }
  return matrix;
}

// Queries of positions first, first + 1, ... over a cache that ends with the last one.
void require_agreement(int64_t first, int64_t rows, float magnitude) {
  const int64_t tokens = first + rows;
  std::vector<float> keys = numbers(kKvHeads * tokens * kDim, 1);
  const std::vector<float> values = numbers(kKvHeads * tokens * kDim, 2),
                           queries = numbers(rows * kHeads * kDim, 3);
  for (float& key : keys) key *= magnitude;
  std::vector<CachedHead> heads;
  for (int64_t g = 0; g < kKvHeads; ++g) {
    heads.push_back(
        {{keys.data() + g * tokens * kDim, tokens, kDim}, {values.data() + g * tokens * kDim, tokens, kDim}});
  }
  std::vector<float> outputs(queries.size(), NAN);
  const SingleMatrixView asked(queries.data(), rows, kHeads * kDim);
  const MutableSingleMatrixView answered(outputs.data(), rows, kHeads * kDim);
  causal_attention(heads, asked, first, 0.35, answered);
  for (int64_t h = 0; h < kHeads; ++h) {
    const CachedHead& head = heads[h / (kHeads / kKvHeads)];
    const Matrix all_keys = widened(head.keys), all_values = widened(head.values),
                 own = widened(asked.middle_cols(h * kDim, kDim));
    for (int64_t i = 0; i < rows; ++i) {
      const Matrix expected =
          reference::attention(own.view().middle_rows(i, 1), all_keys.view().middle_rows(0, first + i + 1),
                               all_values.view().middle_rows(0, first + i + 1), 0.35, {})
              .output;
      // Logits are off by (head_dim + 2) 2^-24 of at most head_dim 0.35 magnitude, weights by twice that;
      // sums and values, at most 1, by less than (8 + sqrt(tokens)) 2^-24 in sum.
      const double bound = std::ldexp(2 * (kDim + 2) * kDim * 0.35 * magnitude + 8 + std::sqrt(tokens), -24);
      for (int64_t c = 0; c < kDim; ++c) {
        ASSERT_NEAR(answered(i, h * kDim + c), expected(0, c), bound) << "head " << h << " row " << i;
      }
    }
  }
}

TEST(CausalAttention, AgreesWithTheReferenceInEveryShapeOfBlocks) {
  for (const int64_t rows : {1, 2, 127, 128, 129, 300}) require_agreement(0, rows, 1);
}
TEST(CausalAttention, AttendsToWhatIsInTheCache) {
  for (const int64_t first : {1, 31, 500}) {
    require_agreement(first, 1, 1);
    require_agreement(first, 130, 1);
  }
}
TEST(CausalAttention, LargeLogitsDoNotOverflow) { require_agreement(3, 40, 3000); }

}  // namespace
}  // namespace kvbound::traces::causal_attention_test
