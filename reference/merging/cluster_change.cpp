#include "cluster_change.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "weighted_mean.hpp"

namespace kvbound::reference {
namespace {

std::vector<int64_t> rows_of_members(const MergeCluster& cluster, const CacheEntries& before) {
  std::vector<int64_t> rows{before.row_of(cluster.into)};
  for (const int64_t position : cluster.from) rows.push_back(before.row_of(position));
  return rows;
}

}  // namespace

ClusterChanges::ClusterChanges(MatrixView queries, double scale, const CacheEntries& before)
    : queries_(queries.rows, queries.cols),
      scale_(scale),
      before_(before),
      logits_(voted_logits(attention_logits(queries, before.keys, scale), before.votes)) {
  for (int64_t h = 0; h < queries.rows; ++h) std::ranges::copy(queries.row(h), queries_.row(h).begin());
  AttentionOutput attended = attention(queries, before.keys, before.values, scale, before.votes);
  outputs_ = std::move(attended.output);
  log_sum_exp_ = std::move(attended.log_sum_exp);
}

ClusterChange ClusterChanges::of(const MergeCluster& cluster, const CacheEntries& after) const {
  const std::vector<int64_t> members = rows_of_members(cluster, before_);
  const int64_t row = after.row_of(cluster.into);
  const VectorView value = after.values.row(row);
  const Matrix logits = voted_logits(
      attention_logits(queries_, after.keys.view().middle_rows(row, 1), scale_), {&after.votes[row], 1});
  ClusterChange change;
  for (int64_t h = 0; h < queries_.rows(); ++h) {
    Rest rest = without(h, members);
    const double share = 1 / (1 + std::exp(rest.log_sum_exp - logits(h, 0)));
    for (size_t c = 0; c < value.size(); ++c) rest.output[c] += share * (value[c] - rest.output[c]);
    change.merged += squared_distance(rest.output, outputs_.row(h));
    change.evicted += squared_distance(without(h, std::span(members).subspan(1)).output, outputs_.row(h));
  }
  change.merged = std::sqrt(change.merged);
  change.evicted = std::sqrt(change.evicted);
  change.floor = floor_of(members);
  return change;
}

ClusterChanges::Rest ClusterChanges::without(int64_t head, std::span<const int64_t> gone) const {
  const int64_t h = head;
  double mass = 0;
  for (const int64_t row : gone) mass += std::exp(logits_(head, row) - log_sum_exp_[h]);
  if (mass > 0.5) return attend_without(head, gone);  // 1 - mass and the difference of outputs would cancel
  Rest rest{log_sum_exp_[h] + std::log1p(-mass), {outputs_.row(head).begin(), outputs_.row(head).end()}};
  for (const int64_t row : gone) {
    const double weight = std::exp(logits_(head, row) - log_sum_exp_[h]);
    const VectorView value = before_.values.row(row);
    for (size_t c = 0; c < value.size(); ++c) rest.output[c] -= weight * value[c];
  }
  for (double& number : rest.output) number /= 1 - mass;
  return rest;
}

ClusterChanges::Rest ClusterChanges::attend_without(int64_t head, std::span<const int64_t> gone) const {
  std::vector<double> weights(logits_.row(head).begin(), logits_.row(head).end());
  for (const int64_t row : gone) weights[row] = -std::numeric_limits<double>::infinity();
  const double log_sum = log_sum_exp(weights);
  if (std::isinf(log_sum)) return {log_sum, std::vector<double>(outputs_.cols())};
  softmax(weights, std::ranges::max(weights), weights);
  return {log_sum, weighted_mean(weights, before_.values)};
}

double ClusterChanges::floor_of(std::span<const int64_t> members) const {
  Matrix means;
  std::vector<double> factors;  // c_h
  for (int64_t h = 0; h < queries_.rows(); ++h) {
    std::vector<double> weights;
    Matrix values;
    for (const int64_t row : members) {
      weights.push_back(logits_(h, row));
      values.append_row(before_.values.row(row));
    }
    factors.push_back(2 * (log_sum_exp(weights) - log_sum_exp_[h]));
    softmax(weights, std::ranges::max(weights), weights);
    means.append_row(weighted_mean(weights, values));
  }
  std::vector<double> shares(factors.size());
  softmax(factors, std::ranges::max(factors), shares);
  const std::vector<double> best = weighted_mean(shares, means);
  double sum = 0;
  for (int64_t h = 0; h < means.rows(); ++h) {
    sum += std::exp(factors[h]) * squared_distance(best, means.row(h));
  }
  return std::sqrt(sum);
}

}  // namespace kvbound::reference
