// KeepKV's weighted means with every operation rounded to single precision: float arithmetic is neither fused
// nor widened (-ffp-contract=off, SSE).
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <kvbound/reference/merging/keep_kv.hpp>

namespace kvbound::test {

inline float single(double x) { return static_cast<float>(x); }

using Row = std::vector<float>;

inline Row row_of(VectorView row) {
  Row result;
  for (const double x : row) result.push_back(single(x));
  return result;
}

inline std::vector<Row> rows_of(const Matrix& matrix) {
  std::vector<Row> rows;
  for (int64_t j = 0; j < matrix.rows(); ++j) rows.push_back(row_of(matrix.row(j)));
  return rows;
}

/// sum_j weights[j] rows[j,:]
inline Row weighted_rows(const Row& weights, const std::vector<Row>& rows) {
  Row sum(rows.front().size());
  for (size_t j = 0; j < rows.size(); ++j) {
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += weights[j] * rows[j][c];
  }
  return sum;
}

/// The softmax of logits, and the logarithm of the sum of their exponentials.
struct Softmax {
  Row weights;
  float log_sum = 0;

  explicit Softmax(Row logits) : weights(std::move(logits)) {
    const float most = *std::ranges::max_element(weights);
    float sum = 0;
    for (float& weight : weights) sum += weight = std::exp(weight - most);
    for (float& weight : weights) weight /= sum;
    log_sum = most + std::log(sum);
  }
};

struct SingleMean {
  Row key, value;
  float log_weight = 0, log_score = 0, mean_log_score = 0, divergence = 0;

  SingleMean(const reference::ClusterMembers& members, const Row& scores) {
    Row logits;
    float votes = 0;
    for (size_t j = 0; j < scores.size(); ++j) {
      logits.push_back(scores[j] + std::log(single(members.votes[j])));
      votes += single(members.votes[j]);
    }
    const Softmax softmax(logits);
    key = weighted_rows(softmax.weights, rows_of(members.keys));
    value = weighted_rows(softmax.weights, rows_of(members.values));
    for (size_t j = 0; j < scores.size(); ++j) mean_log_score += softmax.weights[j] * scores[j];
    log_weight = softmax.log_sum;
    log_score = log_weight - std::log(votes);
    divergence = mean_log_score - log_score;
  }
};

}  // namespace kvbound::test
