#include "weighted_mean.hpp"

#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::reference {

std::vector<double> weighted_mean(VectorView weights, MatrixView rows) {
  require_equal("weights", std::ssize(weights), "rows", rows.rows);
  std::vector<double> mean(rows.cols);
  for (int64_t j = 0; j < rows.rows; ++j) {
    const VectorView row = rows.row(j);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += weights[j] * row[c];
  }
  return mean;
}

}  // namespace kvbound::reference
