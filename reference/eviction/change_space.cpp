#include "change_space.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

namespace kvbound::reference {

ChangeSpace::ChangeSpace(Space space, MatrixView output_projection) : lengths_(space, output_projection) {
  if (space == Space::head) return;
  model_dim_ = output_projection.cols;
  absolute_gram_ = Matrix(output_projection.rows, output_projection.rows);
  const Matrix sizes = absolute(output_projection);
  multiply_transposed(sizes, sizes, absolute_gram_.view());
  for (int64_t k = 0; k < sizes.rows(); ++k) lengths_of_rows_.push_back(std::sqrt(absolute_gram_(k, k)));
}

double ChangeSpace::sum_of_lengths(VectorView x) const {
  double sum = 0;
  for (size_t k = 0; k < x.size(); ++k) sum += std::abs(x[k]) * lengths_of_rows_[k];
  return sum;
}

double ChangeSpace::size(VectorView x) const {
  if (!is_projected()) return std::sqrt(inner_product(x, x));
  double squared = 0;
  for (size_t c = 0; c < x.size(); ++c) {
    double row = 0;
    const VectorView gram = absolute_gram_.row(c);
    for (size_t k = 0; k < x.size(); ++k) row += gram[k] * std::abs(x[k]);
    squared += std::abs(x[c]) * row;
  }
  return std::sqrt(squared);
}

std::vector<ChangeSpace> change_spaces(Space space, MatrixView output_projection, int64_t query_heads) {
  const int64_t head_dim = output_projection.rows / query_heads;
  std::vector<ChangeSpace> spaces;
  for (int64_t h = 0; h < query_heads; ++h) {
    spaces.emplace_back(space, output_projection.middle_rows(h * head_dim, head_dim));
  }
  return spaces;
}

MeasuredValues::MeasuredValues(MatrixView values, std::span<const ChangeSpace> spaces)
    : sizes(std::ssize(spaces), values.rows), squared_norms(sizes.rows(), values.rows) {
  for (size_t h = 0; h < spaces.size(); ++h) {
    const auto row = static_cast<int64_t>(h);
    std::ranges::copy(spaces[h].lengths().squared_norms(values), squared_norms.row(row).begin());
    for (int64_t j = 0; j < values.rows; ++j) sizes(row, j) = spaces[h].size(values.row(j));
  }
}

}  // namespace kvbound::reference
