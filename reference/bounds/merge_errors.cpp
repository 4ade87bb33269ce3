#include "merge_errors.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/numerics/inner_product.hpp>

#include "error_bounds.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

namespace {

constexpr double kUnit = 0x1p-53;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Relative: more than rounding does to sums of nonnegative terms that make up a bound.
constexpr double kOwnRounding = 0x1p-30;
// Where a cluster has no ZIP scale: keep_kv.hpp.

// What is compared with the double reference: its own exact value.
Arithmetic exact() { return {.unit = 0, .smallest = 0x1p-1022, .exponential = 0, .rescalings = 0}; }

MatrixView as_row(VectorView vector) { return {vector.data(), 1, static_cast<int64_t>(vector.size())}; }

// scale sum_c |query_c key_c|
double absolute_logit(VectorView query, VectorView key, double scale) {
  double sum = 0;
  for (size_t c = 0; c < query.size(); ++c) sum += std::abs(query[c] * key[c]);
  return std::abs(scale) * sum;
}

// A cluster's exact quantities, as far as double precision gives them, and the sums that its errors are made of.
class ClusterErrors {
 public:
  ClusterErrors(VectorView query, double scale, const ClusterMembers& members)
      : count_(static_cast<double>(members.keys.rows())),
        dimensions_(static_cast<double>(query.size())),
        logits_(attention_logits(as_row(query), members.keys, scale)),
        logit_errors_(logit_errors(as_row(query), members.keys, scale, exact())),
        exponents_(logit_errors_) {
    logit_error_ = *std::ranges::max_element(exponents_.row(0));
    for (int64_t j = 0; j < members.keys.rows(); ++j) {
      largest_ = std::max(largest_, absolute_logit(query, members.keys.row(j), scale));
    }
    std::vector<double> weighted;
    for (size_t j = 0; j < members.votes.size(); ++j) {
      const double log_votes = std::log(members.votes[j]);
      weighted.push_back(logits_.row(0)[j] + log_votes);
      exponents_.row(0)[j] += exponential(exact()) * std::abs(log_votes) +
                              2 * kUnit * (std::abs(logits_.row(0)[j]) + std::abs(log_votes));
    }
    softmax_ = softmax_errors(weighted, exponents_.row(0), exact());
    for (const double logit : weighted) weights_.push_back(weight_of(logit, softmax_));
    mean_ = logits_(0, 0);
    for (size_t j = 0; j < weights_.size(); ++j) mean_ += weights_[j] * (logits_.row(0)[j] - logits_(0, 0));
    const double votes = sum(members.votes);
    divergence_ = std::max(0.0, mean_ - (softmax_.log_sum_exp - std::log(votes)));
    double condition = 3;
    if (divergence_ <= 0.6) {
      condition = 0;
      for (size_t j = 0; j < weights_.size(); ++j) {
        condition += std::abs(weights_[j] - members.votes[j] / votes * std::exp(divergence_));
      }
    }
    divergence_error_ = (exponential(exact()) + sum_gamma()) * condition + growth(6 * kUnit * largest_) +
                        (exponential(exact()) + kUnit) * divergence_;
  }

  /// ln W
  double log_weight() const { return softmax_.log_sum_exp; }
  /// Of a member.
  double logit(int64_t member) const { return logits_(0, member); }
  double logit_error(int64_t member) const { return logit_errors_(0, member); }

  /// T of the merged entry. absolute_logit: of its key.
  double merged_logit_error(MergedKey key, double absolute_logit) const {
    const double mean_error = logit_error_ + 3 * sum_gamma() * largest_;
    const double conditioned = mean_error * (key == MergedKey::zip ? largest_scale() : 1);
    const double correction = gamma(8 * dimensions_ + 40, exact()) * (divergence_ + divergence_error_);
    const double scaling = key == MergedKey::zip ? 4 * kUnit * (divergence_ + largest_) : 0;
    return logit_error_ + conditioned + divergence_error_ + correction + scaling +
           2 * kUnit * absolute_logit + gamma(count_, exact());
  }

 private:
  double sum_gamma() const { return gamma(count_ + 6, exact()); }

  // S, at least |1 - KL/m| as it may have been computed.
  double largest_scale() const {
    const double mean_size = std::abs(mean_), error = computed_mean_error();
    double largest_logit = 0;
    for (const double logit : logits_.row(0)) largest_logit = std::max(largest_logit, std::abs(logit));
    const double singular = kSingularZip * largest_logit;
    if (mean_size + error < singular * (1 - kOwnRounding)) return 1;
    const double least = std::max(mean_size - error, singular * (1 - kOwnRounding));
    const double correction = divergence_ + divergence_error_;
    return least > 0 ? 1 + correction / least : 1 + (correction > 0 ? kInfinity : 0);
  }

  // mu: how far the weighted mean of the logits may be off.
  double computed_mean_error() const {
    if (!(softmax_.growth < 0.5)) return kInfinity;
    double spread = 0;
    for (size_t j = 0; j < weights_.size(); ++j) {
      spread += weights_[j] * growth(exponents_.row(0)[j]) * std::abs(logits_.row(0)[j] - mean_);
    }
    return spread / (1 - softmax_.growth) + logit_error_ + 3 * sum_gamma() * largest_;
  }

  double count_;
  double dimensions_;
  Matrix logits_;                // [1, members]
  Matrix logit_errors_;          // [1, members]
  Matrix exponents_;             // T_j of the members' weights within the cluster
  double logit_error_ = 0;       // delta
  double largest_ = 0;           // a
  SoftmaxErrors softmax_;        // of ln p + z
  std::vector<double> weights_;  // w/W
  double mean_ = 0;              // m
  double divergence_ = 0;        // KL
  double divergence_error_ = 0;
};

// The bound's terms, cluster by cluster, for one query over the cache that they merged in.
class LosslessMergeErrors {
 public:
  LosslessMergeErrors(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                      std::span<const MergedCluster> clusters)
      : query_(query),
        scale_(scale),
        key_(key),
        cache_(cache),
        clusters_(clusters),
        output_(attention(row(), cache.keys, cache.values, scale, cache.votes).output),
        logits_(attention_logits(row(), cache.keys, scale)),
        logit_errors_(reference::logit_errors(row(), cache.keys, scale, exact())),
        log_before_(merge_effect(row(), scale, cache, clusters).log_sum_exp.front()),
        terms_(static_cast<double>(clusters.size())) {
    for (const MergedCluster& cluster : clusters) terms_ += static_cast<double>(cluster.members.keys.rows());
    for (const MergedCluster& cluster : clusters) add(cluster);
  }

  double bound() const { return (lost_ < 0.5 ? std::min(bound_, range()) : range()) * (1 + kOwnRounding); }

 private:
  MatrixView row() const { return as_row(query_); }
  VectorView output() const { return output_.row(0); }

  void add(const MergedCluster& cluster) {
    const ClusterErrors own(query_, scale_, cluster.members);
    add_members(cluster.members, own);
    const double share = std::exp(own.log_weight() - log_before_);
    if (share == 0) return;
    const double off = merged_weight_error(cluster.row, own);
    lost_ += share * off;
    bound_ += share * (off * distance(cache_.values.row(cluster.row), output()) +
                       (1 + off) * value_error(cluster.members));
  }

  // sum_j A_j t_j || v_j - o' ||
  void add_members(const ClusterMembers& members, const ClusterErrors& own) {
    for (int64_t j = 0; j < members.keys.rows(); ++j) {
      const double votes = members.votes[static_cast<size_t>(j)];
      bound_ += std::exp(own.logit(j) + std::log(votes) - log_before_) *
                weight_error(own.logit(j), votes, own.logit_error(j)) *
                distance(members.values.row(j), output());
    }
  }

  // t of one entry: of its logit, with votes, as an exponent.
  double weight_error(double logit, double votes, double logit_error) const {
    const double log_votes = std::abs(std::log(votes));
    return growth(logit_error + exponential(exact()) * (1 + log_votes) +
                  4 * kUnit * (std::abs(logit) + log_votes + std::abs(log_before_))) +
           2 * gamma(terms_ + 6, exact());
  }

  // t_r + e^T_r - 1
  double merged_weight_error(int64_t entry, const ClusterErrors& own) const {
    const double absolute = absolute_logit(query_, cache_.keys.row(entry), scale_);
    return growth(own.merged_logit_error(key_, absolute)) +
           weight_error(logits_(0, entry), cache_.votes[static_cast<size_t>(entry)], logit_errors_(0, entry));
  }

  // || error of v_r ||
  double value_error(const ClusterMembers& members) const {
    return norm(attention_errors(row(), members.keys, members.values, scale_, members.votes, exact())
                    .output.numbers());
  }

  // How far apart means of the same values can be, however the weights err.
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
    const double count = static_cast<double>(cache_.entries()) + terms_;
    return 2 * farthest +
           10 * growth(gamma(count + 6, exact()) + 4 * kUnit * std::abs(log_before_)) * largest;
  }

  VectorView query_;
  double scale_;
  MergedKey key_;
  const CacheEntries& cache_;
  std::span<const MergedCluster> clusters_;
  Matrix output_;        // [1, head_dim]: o'
  Matrix logits_;        // [1, entries]
  Matrix logit_errors_;  // [1, entries]
  double log_before_;    // ln D
  double terms_;         // of all clusters' sums
  double bound_ = 0;
  double lost_ = 0;  // how much of D may be off
};

}  // namespace

double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                            std::span<const MergedCluster> clusters) {
  assert(key != MergedKey::convex);
  return clusters.empty() ? 0 : LosslessMergeErrors(query, scale, key, cache, clusters).bound();
}

}  // namespace kvbound::reference
