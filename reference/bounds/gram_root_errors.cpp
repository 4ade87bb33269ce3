#include "gram_root_errors.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

GramRootErrors::GramRootErrors(MatrixView values, MatrixView projection, bool exact,
                               const Arithmetic& arithmetic)
    : share_(arithmetic.input_floor > 0 ? 0 : arithmetic.gram_share),
      rounding_(gamma(length_depth(arithmetic, 2 * values.cols + projection.cols) + 2, arithmetic) +
                arithmetic.tensor_lengths) {
  constexpr double kLost = 0x1p-46;  // below the normal range
  summing_ = 2 * reference_error(projection.cols) + kLost;
  Matrix gram(values.cols, values.cols);
  multiply_transposed(projection, projection, gram.view());
  for (int64_t k = 0; k < values.cols; ++k) trace_ += gram(k, k);
  if (!exact) return;
  const Matrix sizes = absolute(values);
  Matrix products(values.rows, values.cols);
  multiply(sizes, absolute(gram), products.view());
  for (int64_t j = 0; j < values.rows; ++j) terms_.push_back(inner_product(sizes.row(j), products.row(j)));
}

double GramRootErrors::of(int64_t j, double norm, double off, double length, double size) const {
  const double all = (size + off) * (size + off);
  const double error = rounding_ * (terms_.empty() ? all : terms_[j]) + summing_ * all;
  const double largest = norm + off, least = std::max(0.0, norm - off);
  const double whole = length * length * trace_;
  if (2 * (largest * largest + error) < share_ * whole) return 0;
  const double rest = least * least - error;
  return rest > 0 ? error / (least + std::sqrt(rest)) : std::sqrt(error);
}

}  // namespace kvbound::reference
