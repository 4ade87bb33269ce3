#include "pseudo_inverse.hpp"

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/SVD>
#include <algorithm>
#include <limits>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::reference {
namespace {

Eigen::MatrixXd transposed(MatrixView rows) {
  Eigen::MatrixXd columns(rows.cols, rows.rows);
  for (int64_t i = 0; i < rows.rows; ++i) {
    for (int64_t c = 0; c < rows.cols; ++c) columns(c, i) = rows(i, c);
  }
  return columns;
}

}  // namespace

PseudoInverse::PseudoInverse(MatrixView rows, double rank) : conditions_(rows.rows), unknowns_(rows.cols) {
  for (int64_t i = 0; i < rows.rows; ++i) require_finite("conditions", rows.row(i));
  combinations_ = Matrix(0, rows.rows);
  directions_ = Matrix(0, rows.cols);
  if (rows.rows == 0 || rows.cols == 0) return;
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(transposed(rows), Eigen::ComputeThinU | Eigen::ComputeThinV);
  const Eigen::VectorXd& sigmas = svd.singularValues();
  const auto append = [](Matrix& matrix, const Eigen::VectorXd& row) {
    matrix.append_row({row.data(), static_cast<size_t>(row.size())});
  };
  // A singular value of 0 is computed as up to this share of the largest.
  const double nothing =
      std::numeric_limits<double>::epsilon() * static_cast<double>(std::max(rows.rows, rows.cols));
  const double least = std::max(rank, nothing) * sigmas[0];
  for (Eigen::Index i = 0; i < sigmas.size(); ++i) {
    if (!(sigmas[i] > 0) || sigmas[i] < least) break;  // singular values are in descending order
    append(combinations_, svd.matrixV().col(i) / sigmas[i]);
    append(directions_, svd.matrixU().col(i));
  }
}

std::vector<double> PseudoInverse::solve(VectorView targets, int64_t rank) const {
  require_equal("targets", std::ssize(targets), "conditions", conditions_);
  std::vector<double> solution(unknowns_);
  for (int64_t i = 0; i < std::min(rank, this->rank()); ++i) {
    double length = 0;
    for (size_t j = 0; j < targets.size(); ++j) length += combinations_.row(i)[j] * targets[j];
    const VectorView direction = directions_.row(i);
    for (size_t c = 0; c < solution.size(); ++c) solution[c] += length * direction[c];
  }
  return solution;
}

}  // namespace kvbound::reference
