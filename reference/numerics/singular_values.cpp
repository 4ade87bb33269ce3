#include "singular_values.hpp"

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>

namespace kvbound::reference {
namespace {

constexpr int64_t kQrRows = 512;  // rows that are taken in at a time

// The upper triangle R, [cols, cols], of rows = Q R: that of the rows so far, with the next ones below it.
Eigen::MatrixXd triangle(MatrixView rows) {
  Eigen::MatrixXd result = Eigen::MatrixXd::Zero(rows.cols, rows.cols);
  Eigen::MatrixXd stacked(rows.cols + kQrRows, rows.cols);
  Eigen::HouseholderQR<Eigen::MatrixXd> qr(stacked.rows(), stacked.cols());
  for (int64_t first = 0; first < rows.rows; first += kQrRows) {
    stacked.setZero();
    stacked.topRows(rows.cols) = result;
    for (int64_t i = first; i < std::min(first + kQrRows, rows.rows); ++i) {
      for (int64_t c = 0; c < rows.cols; ++c) stacked(rows.cols + i - first, c) = rows(i, c);
    }
    qr.compute(stacked);
    result = qr.matrixQR().topRows(rows.cols).triangularView<Eigen::Upper>();
  }
  return result;
}

Eigen::MatrixXd columns_of(MatrixView rows) {
  Eigen::MatrixXd columns(rows.cols, rows.rows);
  for (int64_t i = 0; i < rows.rows; ++i) {
    for (int64_t c = 0; c < rows.cols; ++c) columns(c, i) = rows(i, c);
  }
  return columns;
}

}  // namespace

std::vector<double> singular_values(MatrixView matrix) {
  if (matrix.rows == 0 || matrix.cols == 0) return {};
  const bool tall = matrix.rows > std::max(kQrRows, 2 * matrix.cols);
  const Eigen::VectorXd sigmas =
      Eigen::JacobiSVD<Eigen::MatrixXd>(tall ? triangle(matrix) : columns_of(matrix)).singularValues();
  return {sigmas.begin(), sigmas.end()};
}

}  // namespace kvbound::reference
