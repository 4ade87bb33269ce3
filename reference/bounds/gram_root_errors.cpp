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

RootError GramRootErrors::of(int64_t j, double norm, double off, double length, double size) const {
  const double all = (size + off) * (size + off);
  const double error = rounding_ * (terms_.empty() ? all : terms_[j]) + summing_ * all;
  const double largest = norm + off, least = std::max(0.0, norm - off);
  const double whole = length * length * trace_;
  if (2 * (largest * largest + error) < share_ * whole) return {};
  const double rest = least * least - error;
  return {rest > 0 ? error / (least + std::sqrt(rest)) : std::sqrt(error),
          !surely_takes_root(rest, whole, length)};
}

// 2: rounding of what is compared.
bool GramRootErrors::surely_takes_root(double least_square, double whole, double length) const {
  constexpr double kLargest = 0x1p120;  // far from overflow
  const bool exact = !terms_.empty();
  return exact && least_square >= 2 * share_ * whole && length * length >= 2 * kLeastRootLength &&
         trace_ >= 2 * kLeastRootTrace && whole <= kLargest;
}

}  // namespace kvbound::reference
