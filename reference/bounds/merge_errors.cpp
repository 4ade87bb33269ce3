#include "merge_errors.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "error_bounds.hpp"
#include "merge_rounding.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

namespace {

MatrixView as_row(VectorView vector) { return {vector.data(), 1, std::ssize(vector)}; }

// scale sum_c |query_c key_c|
double absolute_logit(VectorView query, VectorView key, double scale) {
  double sum = 0;
  for (size_t c = 0; c < query.size(); ++c) sum += std::abs(query[c] * key[c]);
  return std::abs(scale) * sum;
}

// Bounds on the rounding errors of one cluster's merged logit and value.
class ClusterErrors {
 public:
  ClusterErrors(VectorView query, double scale, const ClusterMembers& members, const Arithmetic& arithmetic)
      : arithmetic_(arithmetic),
        count_(static_cast<double>(members.keys.rows())),
        dimensions_(static_cast<double>(query.size())),
        logits_(attention_logits(as_row(query), members.keys, scale)),
        logit_errors_(logit_errors(as_row(query), members.keys, scale, arithmetic)),
        cluster_(members, logits_.row(0), logit_errors_.row(0), Evaluation::as_cluster_mean, arithmetic) {
    logit_error_ = *std::ranges::max_element(logit_errors_.row(0));
    for (int64_t j = 0; j < members.keys.rows(); ++j) {
      largest_ = std::max(largest_, absolute_logit(query, members.keys.row(j), scale));
    }
  }

  /// ln W
  double log_weight() const { return cluster_.weights().log_weight(); }
  /// A member's logit, and its error.
  double logit(int64_t member) const { return logits_(0, member); }
  double logit_error(int64_t member) const { return logit_errors_(0, member); }
  /// || error of v_r ||
  double value_error(MatrixView values) const { return norm(cluster_.weights().mean_errors(values, {})); }

  /// T of the merged entry. absolute_logit: the sum of absolute terms of its logit.
  double merged_logit_error(MergedKey key, double absolute_logit) const {
    const double mean_error = logit_error_ + 3 * gamma(count_ + 6, arithmetic_) * largest_;
    const double divergence_error = cluster_.divergence_rounding(largest_);
    const double correction =
        gamma(8 * dimensions_ + 40, arithmetic_) * (cluster_.mean().divergence + divergence_error);
    const double conditioned = mean_error * largest_scale(key, divergence_error);
    return logit_error_ + conditioned + divergence_error + correction + scaling_error(key) +
           2 * unit(arithmetic_) * absolute_logit + gamma(count_, arithmetic_);
  }

 private:
  double scaling_error(MergedKey key) const {
    switch (key) {
      case MergedKey::zip:
        return 4 * unit(arithmetic_) * (cluster_.mean().divergence + largest_);
      case MergedKey::min_norm:
      case MergedKey::convex:
        return 0;
    }
    return kInfinity;
  }

  // S, an upper bound of the computed |1 - KL/m|; 1 for keys without a scale.
  double largest_scale(MergedKey key, double divergence_error) const {
    switch (key) {
      case MergedKey::min_norm:
      case MergedKey::convex:
        return 1;
      case MergedKey::zip:
        return largest_zip_scale(divergence_error);
    }
    return kInfinity;
  }

  double largest_zip_scale(double divergence_error) const {
    const double mean_size = std::abs(cluster_.mean().mean_log_score);
    const double error = cluster_.mean_log_score_error(largest_);
    const double singular = kSingularZip * max_abs(logits_.row(0));
    if (mean_size + error < singular * (1 - kOwnRounding)) return 1;
    const double least = std::max(mean_size - error, singular * (1 - kOwnRounding));
    const double correction = cluster_.mean().divergence + divergence_error;
    return least > 0 ? 1 + correction / least : 1 + (correction > 0 ? kInfinity : 0);
  }

  Arithmetic arithmetic_;
  double count_;
  double dimensions_;
  Matrix logits_;        // [1, members]
  Matrix logit_errors_;  // [1, members]
  ClusterRounding cluster_;
  double logit_error_ = 0;  // delta
  double largest_ = 0;      // a
};

// The bound's terms, cluster by cluster, for one query over the merged cache.
class LosslessMergeErrors {
 public:
  LosslessMergeErrors(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                      std::span<const MergedCluster> clusters, const Arithmetic& arithmetic)
      : arithmetic_(arithmetic),
        query_(query),
        scale_(scale),
        key_(key),
        cache_(cache),
        clusters_(clusters),
        output_(attention(row(), cache.keys, cache.values, scale, cache.votes).output),
        logits_(attention_logits(row(), cache.keys, scale)),
        logit_errors_(reference::logit_errors(row(), cache.keys, scale, arithmetic)),
        effect_(query, scale, cache, clusters, arithmetic) {
    for (const MergedCluster& cluster : clusters) add(cluster);
  }

  double bound() const { return (lost_ < 0.5 ? std::min(bound_, range()) : range()) * (1 + kOwnRounding); }

 private:
  MatrixView row() const { return as_row(query_); }
  VectorView output() const { return output_.row(0); }

  void add(const MergedCluster& cluster) {
    const ClusterErrors own(query_, scale_, cluster.members, arithmetic_);
    add_members(cluster.members, own);
    const double share = std::exp(own.log_weight() - effect_.log_before());
    if (share == 0) return;
    const double off = merged_weight_error(cluster.row, own);
    lost_ += share * off;
    bound_ += share * (off * distance(cache_.values.row(cluster.row), output()) +
                       (1 + off) * own.value_error(cluster.members.values));
  }

  // sum_j A_j t_j || v_j - o' ||
  void add_members(const ClusterMembers& members, const ClusterErrors& own) {
    for (int64_t j = 0; j < members.keys.rows(); ++j) {
      const double votes = members.votes[j];
      bound_ += std::exp(own.logit(j) + std::log(votes) - effect_.log_before()) *
                effect_.weight_error(own.logit(j), votes, own.logit_error(j)) *
                distance(members.values.row(j), output());
    }
  }

  // t_r + e^T_r - 1
  double merged_weight_error(int64_t entry, const ClusterErrors& own) const {
    const double absolute = absolute_logit(query_, cache_.keys.row(entry), scale_);
    return growth(own.merged_logit_error(key_, absolute)) +
           effect_.weight_error(logits_(0, entry), cache_.votes[entry], logit_errors_(0, entry));
  }

  // An upper bound of the distance of two means of the same values, for any errors of the weights.
  double range() const {
    double farthest = 0, largest = 0;
    const auto look_at = [&](const Matrix& values) {
      for (int64_t j = 0; j < values.rows(); ++j) {
        farthest = std::max(farthest, distance(values.row(j), output()));
        largest = std::max(largest, norm(values.row(j)));
      }
    };
    look_at(cache_.values);
    for (const MergedCluster& cluster : clusters_) look_at(cluster.members.values);
    const double count = static_cast<double>(cache_.entries()) + effect_.terms();
    return 2 * farthest + 10 *
                              growth(gamma(count + 6, arithmetic_) +
                                     4 * unit(arithmetic_) * std::abs(effect_.log_before())) *
                              largest;
  }

  Arithmetic arithmetic_;
  VectorView query_;
  double scale_;
  MergedKey key_;
  const CacheEntries& cache_;
  std::span<const MergedCluster> clusters_;
  Matrix output_;        // [1, head_dim]: o'
  Matrix logits_;        // [1, entries]
  Matrix logit_errors_;  // [1, entries]
  EffectRounding effect_;
  double bound_ = 0;
  double lost_ = 0;  // relative error of D
};

}  // namespace

double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                            std::span<const MergedCluster> clusters) {
  return lossless_merge_error(query, scale, key, cache, clusters, reference_rounding());
}

double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                            std::span<const MergedCluster> clusters, const Arithmetic& arithmetic) {
  assert(key != MergedKey::convex);
  return clusters.empty() ? 0 : LosslessMergeErrors(query, scale, key, cache, clusters, arithmetic).bound();
}

}  // namespace kvbound::reference
