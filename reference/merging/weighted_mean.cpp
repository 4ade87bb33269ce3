#include "weighted_mean.hpp"

#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::reference {

std::vector<double> weighted_mean(VectorView weights, MatrixView rows) {
  require_equal("weights", static_cast<int64_t>(weights.size()), "rows", rows.rows);
  std::vector<double> mean(static_cast<size_t>(rows.cols));
  for (int64_t j = 0; j < rows.rows; ++j) {
    const VectorView row = rows.row(j);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += weights[static_cast<size_t>(j)] * row[c];
  }
  return mean;
}

}  // namespace kvbound::reference
