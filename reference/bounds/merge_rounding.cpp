#include "merge_rounding.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

namespace kvbound::reference {

using namespace rounding;

namespace {

// For a log prediction with a larger error, the relative error is 1 to double
// precision, and there is no bound.
constexpr double kFarthestPrediction = 40;

SoftmaxErrors softmax_of(VectorView logits, std::span<double> exponents, const Arithmetic& arithmetic) {
  if (max_abs(exponents) < kInfinity) return softmax_errors(logits, exponents, arithmetic);
  return {log_sum_exp(logits), kInfinity, 0};
}

// A score's own error plus the errors of ln p and of its addition.
double voted_error(double error, double score, double log_votes, const Arithmetic& arithmetic) {
  return error + exponential(arithmetic) * std::abs(log_votes) +
         2 * unit(arithmetic) * (std::abs(score) + std::abs(log_votes));
}

UncertainWeights voted_weights(VectorView votes, VectorView scores, VectorView errors, Evaluation evaluation,
                               const Arithmetic& arithmetic) {
  std::vector<double> logits, off;
  for (size_t j = 0; j < scores.size(); ++j) {
    const double log_votes = std::log(votes[j]);
    logits.push_back(scores[j] + log_votes);
    off.push_back(voted_error(errors[j], scores[j], log_votes, arithmetic));
  }
  return {logits, off, evaluation, arithmetic};
}

// The relative rounding of a weighted mean of M rows: a sum of weights, a quotient, products and a sum of
// products have 2M + 1 roundings, other forms may have more.
double mean_rounding(size_t count, Evaluation evaluation, const Arithmetic& arithmetic) {
  const auto members = static_cast<double>(count);
  switch (evaluation) {
    case Evaluation::any_form:
      return 2 * gamma(members + 8, arithmetic);
    case Evaluation::as_cluster_mean:
      return gamma(2 * members + 3, arithmetic);
  }
  return kInfinity;
}

}  // namespace

Arithmetic reference_rounding() {
  return {.unit = 0, .smallest = 0x1p-1022, .exponential = 0, .rescalings = 0};
}

UncertainWeights::UncertainWeights(VectorView logits, VectorView errors, Evaluation evaluation,
                                   const Arithmetic& arithmetic)
    : rounded_(mean_rounding(logits.size(), evaluation, arithmetic)),
      smallest_(arithmetic.smallest),
      exponents_(errors.begin(), errors.end()),
      softmax_(softmax_of(logits, exponents_, arithmetic)) {
  for (const double logit : logits) weights_.push_back(weight_of(logit, softmax_));
}

double UncertainWeights::moved_mean(VectorView numbers, double mean) const {
  if (!(softmax_.growth < 0.5)) return kInfinity;
  double spread = 0;
  for (size_t j = 0; j < weights_.size(); ++j) {
    spread += weights_[j] * rounding::growth(exponents_[j]) * std::abs(numbers[j] - mean);
  }
  return spread / (1 - softmax_.growth);
}

std::vector<double> UncertainWeights::mean_errors(MatrixView rows, MatrixView row_errors) const {
  const auto members = static_cast<double>(rows.rows);
  const auto row_error = [&](int64_t j, int64_t c) { return row_errors.rows == 0 ? 0 : row_errors(j, c); };
  std::vector<double> result(rows.cols, kInfinity);
  for (int64_t c = 0; c < rows.cols; ++c) {
    double mean = 0, spread = 0, size = 0, off = 0, least = kInfinity, most = -kInfinity, farthest = 0;
    for (int64_t j = 0; j < rows.rows; ++j) {
      mean += weights_[j] * rows(j, c);
      least = std::min(least, rows(j, c));
      most = std::max(most, rows(j, c));
      farthest = std::max(farthest, row_error(j, c));
    }
    const double widest = std::max(std::abs(least), std::abs(most));
    // For any weights, both results are means of the rows.
    double error = most - least + farthest + rounded_ * (widest + farthest);
    if (softmax_.growth < 0.5) {
      for (int64_t j = 0; j < rows.rows; ++j) {
        const double weight = weights_[j];
        const double moved = weight * rounding::growth(exponents_[j]);
        spread += moved * std::abs(rows(j, c) - mean);
        size += (weight + moved) * std::abs(rows(j, c));
        off += (weight + moved) * row_error(j, c);
      }
      const double share = 1 / (1 - softmax_.growth);
      error = std::min(error, share * (spread + rounded_ * (size + off) + off));
    }
    result[c] = (error + 2 * members * smallest_ * (1 + widest)) * (1 + kOwnRounding);
  }
  return result;
}

double UncertainWeights::error_along(VectorView direction, MatrixView rows, MatrixView row_errors,
                                     VectorView rows_along) const {
  if (!(softmax_.growth < 0.5)) return kInfinity;
  std::vector<double> shares, along;
  double mean = 0, off = 0, own = 0, lost = 0;
  for (int64_t j = 0; j < rows.rows; ++j) {
    const VectorView row = rows.row(j);
    shares.push_back(weights_[j] * (1 + rounding::growth(exponents_[j])));
    along.push_back(std::inner_product(direction.begin(), direction.end(), row.begin(), 0.0));
    mean += weights_[j] * along.back();
    off += shares.back() * rows_along[j];
  }
  for (int64_t c = 0; c < rows.cols; ++c) {
    double size = 0, widest = 0;
    for (int64_t j = 0; j < rows.rows; ++j) {
      size += shares[j] * (std::abs(rows(j, c)) + (row_errors.rows == 0 ? 0 : row_errors(j, c)));
      widest = std::max(widest, std::abs(rows(j, c)));
    }
    own += std::abs(direction[c]) * size;
    lost += std::abs(direction[c]) * (1 + widest);
  }
  const double rounded = (rounded_ * own + off) / (1 - softmax_.growth);
  return (moved_mean(along, mean) + rounded + 2 * static_cast<double>(rows.rows) * smallest_ * lost) *
         (1 + kOwnRounding);
}

ClusterRounding::ClusterRounding(const ClusterMembers& members, VectorView scores, VectorView errors,
                                 Evaluation evaluation, const Arithmetic& arithmetic)
    : arithmetic_(arithmetic),
      scores_(scores.begin(), scores.end()),
      mean_(cluster_mean(members, scores)),
      weights_(voted_weights(members.votes, scores, errors, evaluation, arithmetic)),
      moved_(max_abs(errors)) {
  const double votes = sum(members.votes), reach = 1 + 2 * max_abs(scores);
  double size = reach + std::log(votes);
  for (const double vote : members.votes) {
    size = std::max(size, reach + std::log(vote));
    shares_.push_back(vote / votes);
  }
  any_form_ =
      (2 * exponential(arithmetic) + gamma(2 * static_cast<double>(scores.size()) + 12, arithmetic)) * size;
}

double ClusterRounding::mean_log_score_error(double reach) const {
  const double sums = 3 * gamma(static_cast<double>(scores_.size()) + 6, arithmetic_) * reach;
  return moved_ + sums + weights_.moved_mean(scores_, mean_.mean_log_score);
}

double ClusterRounding::divergence_error() const {
  if (!(moved_ < 0.25)) return kInfinity;
  double spread = 0;
  for (size_t j = 0; j < scores_.size(); ++j) {
    spread += mean_.weights[j] * std::abs(scores_[j] - mean_.mean_log_score);
  }
  const double off = rounding::growth(2 * moved_);
  return moved_ * (1 + off) * (spread + 2 * moved_ + off * spread) + any_form_;
}

double ClusterRounding::divergence_rounding(double reach) const {
  const double u = unit(arithmetic_), e = exponential(arithmetic_);
  double condition = 3;
  if (mean_.divergence <= 0.6) {
    condition = 0;
    for (size_t j = 0; j < shares_.size(); ++j) {
      condition += std::abs(mean_.weights[j] - shares_[j] * std::exp(mean_.divergence));
    }
  }
  return (e + gamma(static_cast<double>(shares_.size()) + 6, arithmetic_)) * condition +
         rounding::growth(6 * u * reach) + (e + u) * mean_.divergence;
}

EffectRounding::EffectRounding(VectorView query, double scale, const CacheEntries& cache,
                               std::span<const MergedCluster> clusters, const Arithmetic& arithmetic)
    : query_(query),
      scale_(scale),
      cache_(cache),
      clusters_(clusters),
      arithmetic_(arithmetic),
      log_before_(merge_effect(MatrixView(query.data(), 1, std::ssize(query)), scale, cache, clusters)
                      .log_sum_exp.front()),
      terms_(static_cast<double>(clusters.size())) {
  for (const MergedCluster& cluster : clusters) terms_ += static_cast<double>(cluster.members.keys.rows());
}

double EffectRounding::weight_error(double logit, double votes, double logit_error) const {
  const double log_votes = std::abs(std::log(votes));
  return growth(logit_error + exponential(arithmetic_) * (1 + log_votes) +
                4 * unit(arithmetic_) * (std::abs(logit) + log_votes + std::abs(log_before_))) +
         2 * gamma(terms_ + 6, arithmetic_);
}

double EffectRounding::log_sum_error(std::vector<double> logits, std::vector<double> errors) const {
  const SoftmaxErrors softmax = softmax_errors(logits, errors, arithmetic_);
  return log_sum_exp_error(softmax, std::ssize(logits), arithmetic_);
}

EffectRounding::Query EffectRounding::of_query() const {
  const MatrixView query(query_.data(), 1, std::ssize(query_));
  std::vector<double> now, now_errors, before, before_errors;
  double widest = 0, largest_value = 0;
  std::vector<bool> merged(cache_.votes.size());
  for (const MergedCluster& cluster : clusters_) merged[cluster.row] = true;
  const auto add = [&](const Matrix& keys, const Matrix& values, VectorView votes, bool is_member) {
    const Matrix logits = attention_logits(query, keys, scale_);
    const Matrix errors = logit_errors(query, keys, scale_, arithmetic_);
    for (size_t j = 0; j < votes.size(); ++j) {
      const double logit = logits.row(0)[j], error = errors.row(0)[j], log_votes = std::log(votes[j]);
      const double voted = voted_error(error, logit, log_votes, arithmetic_);
      widest = std::max(widest, weight_error(logit, votes[j], error));
      largest_value = std::max(largest_value, norm(values.row(j)));
      if (!is_member) {
        now.push_back(logit + log_votes);
        now_errors.push_back(voted);
      }
      if (is_member || !merged[j]) {
        before.push_back(logit + log_votes);
        before_errors.push_back(voted);
      }
    }
  };
  add(cache_.keys, cache_.values, cache_.votes, false);
  for (const MergedCluster& cluster : clusters_) {
    add(cluster.members.keys, cluster.members.values, cluster.members.votes, true);
  }
  const double log_now = log_sum_exp(now);
  const double sums = std::max(log_sum_error(now, now_errors), log_sum_error(before, before_errors)) +
                      unit(arithmetic_) * (kFarthestPrediction + 4 * std::abs(log_now)) +
                      exponential(arithmetic_);
  const double common = growth(sums) + gamma(terms_ + static_cast<double>(cache_.entries()) + 6, arithmetic_);
  const double output =
      norm(attention_errors(query, cache_.keys, cache_.values, scale_, cache_.votes, arithmetic_)
               .output.numbers());
  const double weights = widest + (1 + widest) * common;
  return {weights, 6 * weights * largest_value + 2 * output};
}

}  // namespace kvbound::reference
