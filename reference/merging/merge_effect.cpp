#include "merge_effect.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/numerics/product.hpp>

namespace kvbound::reference {
namespace {

// sum += weight * (value - origin)
void add(std::span<double> sum, double weight, VectorView value, VectorView origin) {
  for (size_t c = 0; c < sum.size(); ++c) sum[c] += weight * (value[c] - origin[c]);
}

// The members of all clusters, cluster by cluster.
ClusterMembers all_members(std::span<const MergedCluster> clusters) {
  ClusterMembers all;
  for (const MergedCluster& cluster : clusters) {
    for (int64_t j = 0; j < cluster.members.keys.rows(); ++j) {
      all.keys.append_row(cluster.members.keys.row(j));
      all.values.append_row(cluster.members.values.row(j));
      all.votes.push_back(cluster.members.votes[j]);
    }
  }
  return all;
}

// One query's attention over the cache and the members. The logits include votes and must outlive the object.
class QueryEffect {
 public:
  QueryEffect(VectorView logits, const CacheEntries& cache, VectorView member_logits,
              const ClusterMembers& members, std::span<const MergedCluster> clusters)
      : cache_(cache),
        members_(members),
        clusters_(clusters),
        logits_(logits),
        member_logits_(member_logits),
        log_sum_exp_now_(reference::log_sum_exp(logits_)) {
    std::vector<double> before(logits_.begin(), logits_.end());
    for (const MergedCluster& cluster : clusters) {
      before[cluster.row] = -std::numeric_limits<double>::infinity();
    }
    before.insert(before.end(), member_logits_.begin(), member_logits_.end());
    log_sum_exp_ = reference::log_sum_exp(before);
  }

  double log_sum_exp() const { return log_sum_exp_; }
  double merged_weight(size_t cluster) const { return std::exp(logit_of(cluster) - log_sum_exp_now_); }
  double members_weight() const {
    double sum = 0;
    for (const double logit : member_logits_) sum += std::exp(logit - log_sum_exp_);
    return sum;
  }

  void add_change(VectorView output_now, std::span<double> change) const {
    if (log_sum_exp_now_ - log_sum_exp_ > std::log(2.0)) {
      add_difference(output_now, change);
      return;
    }
    for (size_t j = 0; j < member_logits_.size(); ++j) {
      add(change, std::exp(member_logits_[j] - log_sum_exp_), members_.values.row(j), output_now);
    }
    for (size_t r = 0; r < clusters_.size(); ++r) {
      add(change, -std::exp(logit_of(r) - log_sum_exp_), cache_.values.row(clusters_[r].row), output_now);
    }
  }

 private:
  double logit_of(size_t cluster) const { return logits_[clusters_[cluster].row]; }

  // Adds sum_j A_j (v_j - o') over the whole cache before the merge.
  void add_difference(VectorView output_now, std::span<double> change) const {
    std::vector<double> weights(logits_.size());
    for (size_t j = 0; j < weights.size(); ++j) {
      weights[j] = std::exp(std::min(logits_[j] - log_sum_exp_, 0.0));
    }
    for (const MergedCluster& cluster : clusters_) weights[cluster.row] = 0;
    for (size_t j = 0; j < weights.size(); ++j) {
      if (weights[j] > 0) add(change, weights[j], cache_.values.row(j), output_now);
    }
    for (size_t j = 0; j < member_logits_.size(); ++j) {
      add(change, std::exp(member_logits_[j] - log_sum_exp_), members_.values.row(j), output_now);
    }
  }

  const CacheEntries& cache_;
  const ClusterMembers& members_;
  std::span<const MergedCluster> clusters_;
  VectorView logits_;
  VectorView member_logits_;
  double log_sum_exp_now_;  // ln D'
  double log_sum_exp_;      // ln D
};

}  // namespace

MergedCluster merged_cluster(const MergeCluster& cluster, const CacheEntries& before,
                             const CacheEntries& after) {
  MergedCluster result;
  result.row = after.row_of(cluster.into);
  const auto append = [&](int64_t position) {
    const int64_t row = before.row_of(position);
    result.members.keys.append_row(before.keys.row(row));
    result.members.values.append_row(before.values.row(row));
    result.members.votes.push_back(before.votes[row]);
  };
  append(cluster.into);
  for (const int64_t position : cluster.from) append(position);
  result.members.log_scores = cluster.log_scores;
  return result;
}

MergeEffect merge_effect(MatrixView queries, double scale, const CacheEntries& cache,
                         std::span<const MergedCluster> clusters) {
  const ClusterMembers members = all_members(clusters);
  const auto cluster_count = std::ssize(clusters);
  MergeEffect effect;
  effect.change = Matrix(queries.rows, cache.values.cols());
  if (clusters.empty()) return effect;
  effect.member_logits = attention_logits(queries, members.keys, scale);
  effect.merged_logits = effect.merged_weights = Matrix(queries.rows, cluster_count);
  const Matrix logits = attention_logits(queries, cache.keys, scale);
  const Matrix voted = voted_logits(logits, cache.votes);
  const Matrix voted_members = voted_logits(effect.member_logits, members.votes);
  const Matrix outputs = attention(queries, cache.keys, cache.values, scale, cache.votes).output;
  for (int64_t i = 0; i < queries.rows; ++i) {
    const QueryEffect query(voted.row(i), cache, voted_members.row(i), members, clusters);
    effect.log_sum_exp.push_back(query.log_sum_exp());
    effect.members_weight.push_back(query.members_weight());
    for (int64_t r = 0; r < cluster_count; ++r) {
      const auto cluster = static_cast<size_t>(r);
      effect.merged_logits(i, r) = logits(i, clusters[cluster].row);
      effect.merged_weights(i, r) = query.merged_weight(cluster);
    }
    query.add_change(outputs.row(i), effect.change.row(i));
  }
  return effect;
}

}  // namespace kvbound::reference
