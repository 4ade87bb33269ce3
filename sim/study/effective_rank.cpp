#include "effective_rank.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/singular_values.hpp>

namespace kvbound::sim {
namespace {

double largest_magnitude(MatrixView matrix) {
  double largest = 0;
  for (int64_t i = 0; i < matrix.rows; ++i) {
    require_finite("matrix", matrix.row(i));
    for (const double number : matrix.row(i)) largest = std::max(largest, std::abs(number));
  }
  return largest;
}

// The matrix times a power of two, which is exact but for numbers too small to matter: no square of the
// largest numbers overflows or underflows.
Matrix scaled_to_one(MatrixView matrix, double largest) {
  const int exponent = std::ilogb(largest);
  Matrix scaled(matrix.rows, matrix.cols);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    std::ranges::transform(matrix.row(i), scaled.row(i).begin(),
                           [&](double number) { return std::scalbn(number, -exponent); });
  }
  return scaled;
}

}  // namespace

EffectiveRank effective_rank(MatrixView matrix) {
  const double largest = largest_magnitude(matrix);
  if (largest == 0) return {};
  const std::vector<double> sigmas = reference::singular_values(scaled_to_one(matrix, largest));
  double sum = 0, squares = 0;
  for (const double sigma : sigmas) {
    sum += sigma;
    squares += sigma * sigma;
  }
  double entropy = 0;
  for (const double sigma : sigmas) {
    if (sigma > 0) entropy -= sigma / sum * std::log(sigma / sum);
  }
  const auto most = static_cast<double>(sigmas.size());  // exceeded by rounding alone
  return {std::min(std::exp(entropy), most), std::min(squares / (sigmas[0] * sigmas[0]), most)};
}

}  // namespace kvbound::sim
