#include "merge_prediction.hpp"

#include <algorithm>

namespace kvbound::proofs {

using exact::Query;
using exact::Real;
using exact::Reals;

namespace {

Query seen(const MergingHead& head, size_t query, const exact::Entries& entries) {
  return exact::attention(exact::logits(head.queries[query], entries.keys), entries.votes, entries.values);
}

// |1 - s^/s| from logarithms.
Real relative_error(const Real& predicted, const Real& logit) { return abs(1 - exp(predicted - logit)); }

}  // namespace

exact::MergedEntry zip_merge(const exact::ClusterMean& mean, const Reals&) { return exact::zip_merge(mean); }
exact::MergedEntry convex_merge(const exact::ClusterMean& mean, const Reals&) {
  return exact::convex_merge(mean);
}

Merges::Merges(const MergingCase& merging, size_t head, const std::vector<Cluster>& clusters_, MergeRule rule)
    : clusters(clusters_) {
  for (const Cluster& cluster : clusters) {
    const exact::ClusterMean mean = merging.mean(head, cluster);
    entries.push_back(rule(mean, merging.heads[head].queries.front()));
    predicted.push_back(mean.target);
  }
}

QueryEffect::QueryEffect(const MergingCase& merging, size_t head, const Merges& merges, size_t query)
    : merging_(merging),
      head_(merging.heads[head]),
      index_(head),
      query_(head_.queries[query]),
      merges_(merges),
      before_(seen(head_, query, merging.cache)),
      after_(seen(head_, query, exact::with_merged(merging.cache, merges.clusters, merges.entries))) {
  for (size_t g = 0; g < merges.clusters.size(); ++g) {
    for (const int64_t member : merges.clusters[g]) {
      const int64_t j = member;
      const Real logit = oracle::dot(query_, merging.cache.keys[j]);
      members_epsilon_ = std::max<Real>(members_epsilon_, relative_error(head_.predicted[j], logit));
    }
    const Reals& key = merges.entries[g].key;
    merged_terms_ =
        std::max<Real>(merged_terms_, absolute_terms(query_, key) + absolute_terms(query_, query_));
    merged_epsilon_ =
        std::max<Real>(merged_epsilon_, relative_error(merges.predicted[g], oracle::dot(query_, key)));
  }
}

Real QueryEffect::merged_share() const {
  Real sum = 0;
  for (size_t g = 0; g < merges_.entries.size(); ++g) sum += share(g);
  return sum;
}

Reals QueryEffect::change(Space space) const {
  return head_.in(space, exact::difference(after_.output, before_.output));
}

Reals QueryEffect::reweighted() const {
  Reals result = before_.attention;
  for (size_t g = 0; g < merges_.clusters.size(); ++g) {
    const Real merged = oracle::dot(query_, merges_.entries[g].key) - merges_.predicted[g];
    for (const int64_t member : merges_.clusters[g]) {
      const int64_t j = member;
      result[j] *= exp(merged + head_.predicted[j] - oracle::dot(query_, merging_.cache.keys[j]));
    }
  }
  return exact::scaled(1 / oracle::sum(result), result);
}

Real QueryEffect::moved_attention() const {
  return exact::norm(exact::difference(reweighted(), before_.attention), exact::Norm::l1) / 2;
}

Real QueryEffect::spread(Space space, exact::Norm norm) const {
  const exact::Vectors& values = head_.values[static_cast<size_t>(space)];
  Real result = 0;
  for (const Cluster& cluster : merges_.clusters) {
    for (const int64_t member : cluster) {
      for (const Reals& value : values) {
        const Reals apart = exact::difference(value, values[member]);
        result = std::max<Real>(result, exact::norm(apart, norm));
      }
    }
  }
  return result;
}

Real printed_factor(const Real& epsilon) {
  return 2 * epsilon * (1 + epsilon) / ((1 - epsilon) * (1 - epsilon));
}

bool any_predicted(const MergingCase& merging) {
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (const Cluster& cluster : merging.clusters) {
      const Merges merges(merging, h, {cluster}, exact::min_norm_merge);
      for (size_t i = 1; i < merging.heads[h].queries.size(); ++i) {
        const Real epsilon = QueryEffect(merging, h, merges, i).epsilon();
        if (0 < epsilon && epsilon < 1) return true;
      }
    }
  }
  return false;
}

}  // namespace kvbound::proofs
