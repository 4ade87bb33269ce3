#include "later_queries.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <kvbound/reference/bounds/merge_rounding.hpp>
#include <kvbound/reference/merging/merge_bounds.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

namespace kvbound::sim {

using reference::CacheEntries;
using reference::distance;
using reference::EffectRounding;
using reference::kOwnRounding;
using reference::MergedCluster;
using reference::MergeEffect;
using reference::norm;

void OpenMerges::open(const reference::CacheMerge& merge, const CacheEntries& after, const MergeKind& kind,
                      int64_t seen) {
  Merge opened;
  opened.kind = kind;
  opened.seen = seen;
  for (const MergeCluster& cluster : *merge.clusters) {
    close(cluster.into);
    const Cluster& last = opened.clusters.emplace_back(open_cluster(cluster, merge.before, after));
    for (int64_t j = 0; j < last.members.values.rows(); ++j) {
      opened.merged_values.append_row(last.members.values.row(j));
    }
  }
  if (kind.votes) opened.distance = reference::largest_distance(merge.before.values, opened.merged_values);
  merges_.push_back(std::move(opened));
}

void OpenMerges::close(int64_t position) {
  for (Merge& merge : merges_) {
    std::erase_if(merge.clusters, [&](const Cluster& cluster) { return cluster.into == position; });
  }
  std::erase_if(merges_, [](const Merge& merge) { return merge.clusters.empty(); });
}

OpenMerges::Cluster OpenMerges::open_cluster(const MergeCluster& cluster, const CacheEntries& before,
                                             const CacheEntries& after) {
  Cluster opened;
  opened.into = cluster.into;
  MergedCluster merged = merged_cluster(cluster, before, after);
  opened.members = std::move(merged.members);
  if (cluster.log_scores.cols() == 0) return opened;                // nothing was predicted
  const std::vector<double> recorded(opened.members.votes.size());  // errors of the recorded scores: all 0
  for (int64_t i = 0; i < cluster.log_scores.rows(); ++i) {
    const VectorView log_scores = cluster.log_scores.row(i);
    const reference::ClusterRounding rounding(opened.members, log_scores, recorded,
                                              reference::Evaluation::as_cluster_mean,
                                              reference::reference_rounding());
    opened.weights.append_row(rounding.mean().weights);
    opened.log_merged.push_back(reference::log_mean_score(opened.members.votes, log_scores));
    opened.log_merged_error.push_back(rounding.log_weight_error());
    opened.value_apart.push_back(distance(rounding.mean().value, after.values.row(merged.row)));
    opened.value_apart_error.push_back(norm(rounding.weights().mean_errors(opened.members.values, {})));
  }
  return opened;
}

std::vector<StepHead> OpenMerges::measure(MatrixView queries, const CacheEntries& present, int64_t seen,
                                          int64_t t, int64_t first_head, LaterQueries& later) {
  if (merges_.empty()) return {};
  Merge& merge = merges_.back();
  std::vector<MergedCluster> clusters;
  for (const Cluster& cluster : merge.clusters)
    clusters.push_back({cluster.members, present.row_of(cluster.into)});
  const MergeEffect effect = merge_effect(queries, scale_, present, clusters);
  if (merge.kind.votes) accumulate_values(merge, seen);
  const bool predicted = !merge.clusters.front().log_merged.empty();
  std::vector<StepHead> violations;
  for (int64_t i = 0; i < group_size_; ++i) {
    const int64_t h = first_head + i;
    const VectorView weights = effect.merged_weights.row(i);
    const double perturbation = norm(effect.change.row(i));
    const double share = reference::sum(weights);
    later.perturbation(t, h) = perturbation;
    later.share(t, h) = share;
    later.sag(t, h) = effect.members_weight[i] - share;
    if (!predicted) continue;
    const double error = prediction_error(merge, effect, i);
    later.prediction_error(t, h) = error;
    if (!merge.kind.votes) continue;
    const double apart = weighted_sum(merge, weights, &Cluster::value_apart, i);
    later.value_distance(t, h) = merge.distance;
    later.joint_bound(t, h) = smallest_bound(error, merge, share) + apart;
    later.variation_bound(t, h) = merge.distance * variation(merge, effect, i) + apart;
    if (group_size_ == 1) {
      later.bound(t, h) = reference::later_bound(error, merge.distance);
      later.shared_bound(t, h) = reference::later_bound(error, merge.distance, share);
    }
    // Rounding is only accounted for, at some cost, where a bound seems to be violated.
    if (!(perturbation <= std::min(later.joint_bound(t, h), later.variation_bound(t, h))) &&
        !(perturbation <= bound_with_rounding(merge, clusters, effect, error, present, queries.row(i), i))) {
      violations.push_back({t, h});
    }
  }
  return violations;
}

void OpenMerges::accumulate_values(Merge& merge, int64_t seen) const {
  const double farthest =
      reference::largest_distance(values_.middle_rows(merge.seen, seen - merge.seen), merge.merged_values);
  merge.distance = std::max(merge.distance, farthest);
  merge.seen = seen;
}

// epsilon = max |1 - s^/s| of one query head, over the members and the merged entries.
double OpenMerges::prediction_error(const Merge& merge, const MergeEffect& effect, int64_t head) {
  const bool normalised = merge.kind.unit == ScoreKind::attention;
  const double shift = normalised ? effect.log_sum_exp[head] : 0;
  std::vector<double> predicted, actual;
  int64_t member = 0;
  for (size_t r = 0; r < merge.clusters.size(); ++r) {
    const VectorView scores = merge.clusters[r].members.log_scores.row(head);
    predicted.insert(predicted.end(), scores.begin(), scores.end());
    for (size_t j = 0; j < scores.size(); ++j) {
      actual.push_back(effect.member_logits(head, member++) - shift);
    }
    predicted.push_back(merge.clusters[r].log_merged[head]);
    actual.push_back(effect.merged_logits(head, r) - shift);
  }
  return reference::prediction_error(predicted, actual);
}

// The smaller of KKV-5' and KKV-5-sharp.
double OpenMerges::smallest_bound(double prediction_error, const Merge& merge, double share) {
  return std::min(reference::later_bound(prediction_error, merge.distance, share),
                  reference::sharp_later_bound(prediction_error, merge.distance, std::ssize(merge.clusters)));
}

// The total variation of one query head's attention over the cache before. All entries that did not merge
// change by one factor, and together by as much as the members do.
double OpenMerges::variation(const Merge& merge, const MergeEffect& effect, int64_t head) {
  double change = 0, share = 0;
  int64_t member = 0;
  for (size_t r = 0; r < merge.clusters.size(); ++r) {
    const Cluster& cluster = merge.clusters[r];
    const double merged = effect.merged_weights(head, static_cast<int64_t>(r));
    share += merged;
    for (size_t j = 0; j < cluster.members.votes.size(); ++j, ++member) {
      const double before =
          cluster.members.votes[j] * std::exp(effect.member_logits(head, member) - effect.log_sum_exp[head]);
      change += std::abs(merged * cluster.weights.row(head)[j] - before);
    }
  }
  return (change + std::abs(effect.members_weight[head] - share)) / 2;
}

// sum_r A'_r x_r for one query head, where `figures` selects x: ||v_r - v-_h|| or its error bound.
double OpenMerges::weighted_sum(const Merge& merge, VectorView weights,
                                const std::vector<double> Cluster::*figures, int64_t head) {
  double sum = 0;
  for (size_t r = 0; r < merge.clusters.size(); ++r) {
    sum += weights[r] * (merge.clusters[r].*figures)[head];
  }
  return sum;
}

// The smaller of KKV-5-joint and the bound by total variation, plus all that rounding may add to them and to
// the perturbation.
double OpenMerges::bound_with_rounding(const Merge& merge, std::span<const MergedCluster> clusters,
                                       const MergeEffect& effect, double prediction_error,
                                       const CacheEntries& present, VectorView query, int64_t head) const {
  const EffectRounding::Query rounding = EffectRounding(query, scale_, present, clusters).of_query();
  double merged = 0;
  for (const Cluster& cluster : merge.clusters) merged = std::max(merged, cluster.log_merged_error[head]);
  const double scores = rounding.weights + (1 + rounding.weights) * std::expm1(merged);
  const double error = prediction_error + (1 + prediction_error) * scores + kOwnRounding * prediction_error;
  const VectorView weights = effect.merged_weights.row(head);
  const double share = reference::sum(weights);
  const double apart = weighted_sum(merge, weights, &Cluster::value_apart, head) +
                       weighted_sum(merge, weights, &Cluster::value_apart_error, head);
  // Every weight of the total variation is off by at most this share of itself.
  const double varied = variation(merge, effect, head) + scores * (share + effect.members_weight[head]);
  const double bound = (std::min(smallest_bound(error, merge, share), merge.distance * varied) + apart) *
                           (1 + rounding.weights) +
                       rounding.change;
  return bound * (1 + kOwnRounding);
}

}  // namespace kvbound::sim
