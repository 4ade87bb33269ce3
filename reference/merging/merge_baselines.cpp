#include "merge_baselines.hpp"

#include <cmath>
#include <string>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/directions.hpp>
#include <kvbound/reference/numerics/exponential.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

namespace kvbound::reference {
namespace {

void require_cluster(MatrixView keys) {
  if (keys.rows < 1) throw ShapeMismatch("a cluster of no keys");
  for (int64_t j = 0; j < keys.rows; ++j) require_finite("keys[" + std::to_string(j) + "]", keys.row(j));
}

// The vector times a power of two, so that its largest number is in [1/2, 1) and no square
// overflows or underflows.
std::vector<double> scaled(VectorView vector) {
  const double size = max_abs(vector);
  std::vector<double> result(vector.begin(), vector.end());
  if (size == 0) return result;
  const int exponent = -1 - std::ilogb(size);
  for (double& number : result) number = std::scalbn(number, exponent);
  return result;
}

std::vector<double> normalised(std::vector<double> log_weights) {
  const double sum = exponentiate(log_weights, 0);
  for (double& weight : log_weights) weight /= sum;
  return log_weights;
}

// factor (keys[j,:] - keys[0,:])
Matrix differences(MatrixView keys, double factor) {
  Matrix result(keys.rows, keys.cols);
  for (int64_t j = 1; j < keys.rows; ++j) {
    for (int64_t c = 0; c < keys.cols; ++c) result(j, c) = factor * keys(j, c) - factor * keys(0, c);
  }
  return result;
}

// ||keys[j,:] - keys[0,:]||^2, all scaled by one common factor, so that the largest is at
// least 1/4, or all are 0.
std::vector<double> relative_squared_distances(MatrixView keys) {
  Matrix moved = differences(keys, 1);
  if (!std::isfinite(max_abs(moved.numbers()))) moved = differences(keys, 0.5);
  std::vector<double> result(keys.rows);
  const double size = max_abs(moved.numbers());
  if (size == 0) return result;
  const int exponent = -1 - std::ilogb(size);
  for (int64_t j = 1; j < keys.rows; ++j) {
    for (double& number : moved.row(j)) number = std::scalbn(number, exponent);
    result[j] = inner_product(moved.row(j), moved.row(j));
  }
  return result;
}

}  // namespace

std::vector<double> similarity_weights(MatrixView keys) {
  require_cluster(keys);
  const std::vector<double> target = scaled(keys.row(0));
  const double target_length = length(target);
  std::vector<double> cosines{1};  // of the target with itself, also if it is zero
  for (int64_t j = 1; j < keys.rows; ++j) {
    const std::vector<double> key = scaled(keys.row(j));
    cosines.push_back(cosine(key, length(key), target, target_length));
  }
  return normalised(std::move(cosines));
}

std::vector<double> gaussian_weights(MatrixView keys) {
  require_cluster(keys);
  std::vector<double> distances = relative_squared_distances(keys);
  double sum = 0;
  for (const double distance : distances) sum += distance;
  if (sum > 0) {
    const double twice_variance = 2 * (sum / static_cast<double>(keys.rows - 1));
    for (double& distance : distances) distance = -(distance / twice_variance);
  }
  return normalised(std::move(distances));
}

}  // namespace kvbound::reference
