#include "value_space.hpp"

#include <algorithm>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

namespace kvbound::reference {
namespace {

// Rows whose lengths are computed together: few, because a decode step adds one row at a time.
constexpr int64_t kRows = 16;

// x G x^T is >= 0 because G is positive semidefinite, but rounding may make it negative. NaN is returned.
double not_negative(double norm) { return norm < 0 ? 0 : norm; }

}  // namespace

ValueSpace::ValueSpace(Space space, MatrixView output_projection) {
  if (space == Space::head) return;
  gram_.emplace(output_projection.rows, output_projection.rows);
  multiply_transposed(output_projection, output_projection, gram_->view());
}

Matrix ValueSpace::gram_product(MatrixView rows) const {
  Matrix result(rows.rows, rows.cols);
  if (gram_) {
    require_equal("columns of the rows", rows.cols, "head_dim", gram_->rows());
    multiply(rows, *gram_, result.view());
  } else {
    for (int64_t i = 0; i < rows.rows; ++i) std::ranges::copy(rows.row(i), result.row(i).begin());
  }
  return result;
}

std::vector<double> ValueSpace::squared_norms(MatrixView rows) const {
  std::vector<double> norms;
  if (is_head()) {
    for (int64_t i = 0; i < rows.rows; ++i) norms.push_back(squared_norm(rows.row(i)));
  } else {
    for (int64_t b = 0; b < token_blocks(rows.rows, kRows); ++b)
      append_squared_norms(TokenBlock(rows, b, kRows), norms);
  }
  require_finite("squared norms", norms);
  return norms;
}

void ValueSpace::append_squared_norms(const TokenBlock& block, std::vector<double>& norms) const {
  const Matrix gram_products = gram_product(block.rows);
  for (int64_t i = 0; i < block.count; ++i) {
    norms.push_back(not_negative(inner_product(block.rows.row(i), gram_products.row(i))));
  }
}

double ValueSpace::squared_norm(VectorView x) const {
  if (is_head()) return inner_product(x, x);
  double norm = 0;
  for (size_t c = 0; c < x.size(); ++c) norm += x[c] * inner_product(gram_->row(static_cast<int64_t>(c)), x);
  return not_negative(norm);
}

std::vector<ValueSpace> value_spaces(Space space, MatrixView output_projection, int64_t query_heads) {
  const int64_t head_dim = output_projection.rows / query_heads;
  std::vector<ValueSpace> spaces(query_heads);
  if (space == Space::head) return spaces;
  parallel_for(query_heads, [&](int64_t h) {
    spaces[h] = ValueSpace(space, output_projection.middle_rows(h * head_dim, head_dim));
  });
  return spaces;
}

Matrix squared_norms(MatrixView values, std::span<const ValueSpace> spaces) {
  Matrix norms(std::ssize(spaces), values.rows);
  for (size_t h = 0; h < spaces.size(); ++h) {
    const std::span<double> row = norms.row(h);
    if (h > 0 && spaces[h].is_head()) {
      std::ranges::copy(norms.row(0), row.begin());
    } else {
      std::ranges::copy(spaces[h].squared_norms(values), row.begin());
    }
  }
  return norms;
}

}  // namespace kvbound::reference
