#include "removal.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::reference {
namespace {

// The attention of one part of a cache.
struct Part {
  std::vector<double> logits;
  Matrix values;

  void add(double logit, VectorView value) {
    logits.push_back(logit);
    values.append_row(value);
  }
  // The part's output; overwrites the logits by their softmax.
  std::vector<double> output() {
    softmax(logits, *std::ranges::max_element(logits), logits);
    std::vector<double> mean(values.cols());
    for (size_t i = 0; i < logits.size(); ++i) {
      const VectorView value = values.row(i);
      for (size_t c = 0; c < mean.size(); ++c) mean[c] += logits[i] * value[c];
    }
    return mean;
  }
};

}  // namespace

std::vector<double> removal_change(VectorView logits, MatrixView values, std::span<const int64_t> removed) {
  require_equal("logits", std::ssize(logits), "rows of values", values.rows);
  require_finite("logits", logits);
  for (size_t i = 0; i < removed.size(); ++i) {
    if (removed[i] < 0 || removed[i] >= values.rows || (i > 0 && removed[i] <= removed[i - 1])) {
      throw ShapeMismatch("removed[" + std::to_string(i) + "] is " + std::to_string(removed[i]) +
                          "; expected ascending indices of " + std::to_string(values.rows) + " entries");
    }
  }
  std::vector<double> change(values.cols);
  if (removed.empty()) return change;
  Part leaving, staying;
  for (int64_t i = 0; i < values.rows; ++i) {
    Part& part = std::ranges::binary_search(removed, i) ? leaving : staying;
    part.add(logits[i], values.row(i));
  }
  if (staying.logits.empty()) throw NonFinite("all entries are removed: there is no output without them");
  const double mass = 1 / (1 + std::exp(log_sum_exp(staying.logits) - log_sum_exp(leaving.logits)));
  const std::vector<double> before = leaving.output(), after = staying.output();
  for (size_t c = 0; c < change.size(); ++c) change[c] = mass * (after[c] - before[c]);
  return change;
}

}  // namespace kvbound::reference
