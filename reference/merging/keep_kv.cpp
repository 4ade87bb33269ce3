#include "keep_kv.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/columns.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "weighted_mean.hpp"

namespace kvbound::reference {
namespace {

// The rows' mean.
Matrix mean_row(MatrixView rows) {
  Matrix mean(1, rows.cols);
  for (int64_t i = 0; i < rows.rows; ++i) {
    for (int64_t c = 0; c < rows.cols; ++c) mean(0, c) += rows(i, c);
  }
  for (double& number : mean.row(0)) number /= static_cast<double>(rows.rows);
  return mean;
}

// -ln sum_j (p_j / P) exp(x_j) for x with w-weighted mean 0. Near
// x = 0 it is computed from expm1, which avoids cancellation against 1.
double divergence(VectorView shares, VectorView centred) {
  double below = 0, whole = 0;
  for (size_t j = 0; j < shares.size(); ++j) {
    below += shares[j] * std::expm1(centred[j]);
    whole += shares[j] * std::exp(centred[j]);
  }
  const double result = below > -0.5 ? -std::log1p(below) : -std::log(whole);
  if (!std::isfinite(result)) throw NonFinite("log_scores are too far apart");
  return std::max(0.0, result);
}

void require_consistent(const MergeQueries& queries, const MergingCache& cache) {
  require_equal("columns of keys", cache.keys.cols, "columns of queries", queries.head_dim());
  require_equal("rows of values", cache.values.rows, "rows of keys", cache.keys.rows);
  if (!cache.votes.empty()) {
    require_equal("votes", std::ssize(cache.votes), "rows of keys", cache.keys.rows);
  }
  require_equal("columns of log_scores", cache.log_scores.cols, "rows of keys", cache.keys.rows);
  require_equal("rows of log_scores", cache.log_scores.rows, "query heads", queries.heads());
}

ClusterMembers members_of(const MergingCache& cache, std::span<const int64_t> cluster) {
  ClusterMembers members{rows_of(cache.keys, cluster),
                         rows_of(cache.values, cluster),
                         {},
                         columns_of(cache.log_scores, cluster)};
  for (const int64_t entry : cluster) {
    members.votes.push_back(cache.votes.empty() ? 1 : cache.votes[entry]);
  }
  return members;
}

std::vector<ClusterMean> cluster_means(const MergeQueries& queries, const ClusterMembers& members) {
  const Matrix scores = queries.merging_scores(members.log_scores);
  std::vector<ClusterMean> means;
  for (int64_t h = 0; h < scores.rows(); ++h) means.push_back(cluster_mean(members, scores.row(h)));
  return means;
}

// sum_h c_h v-_h / sum_h c_h, c_h = (W_h / D_h)^2.
std::vector<double> joint_value(const MergeQueries& queries, const std::vector<ClusterMean>& means) {
  if (means.size() == 1) return means.front().value;
  std::vector<double> weights;
  Matrix values;
  for (size_t h = 0; h < means.size(); ++h) {
    weights.push_back(2 * (means[h].log_weight - queries.log_denominator(static_cast<int64_t>(h))));
    values.append_row(means[h].value);
  }
  softmax(weights, *std::ranges::max_element(weights), weights);
  return weighted_mean(weights, values);
}

// mean_h k-_h.
std::vector<double> mean_key(const std::vector<ClusterMean>& means) {
  std::vector<double> key(means.front().key.size());
  for (const ClusterMean& mean : means) {
    for (size_t c = 0; c < key.size(); ++c) key[c] += mean.key[c];
  }
  for (double& number : key) number /= static_cast<double>(means.size());
  return key;
}

// Per query head, its target logit scale q_h . k-_h - KL_h minus its logit of `key`.
std::vector<double> missing_logits(const MergeQueries& queries, const std::vector<ClusterMean>& means,
                                   VectorView key) {
  std::vector<double> missing;
  std::vector<double> apart(key.size());
  for (size_t h = 0; h < means.size(); ++h) {
    for (size_t c = 0; c < key.size(); ++c) apart[c] = means[h].key[c] - key[c];
    missing.push_back(queries.logit(h, apart) - means[h].divergence);
  }
  return missing;
}

std::vector<double> min_norm_key(const MergeQueries& queries, const std::vector<ClusterMean>& means) {
  std::vector<double> key = mean_key(means);
  const std::vector<double> correction = queries.correction(missing_logits(queries, means, key));
  for (size_t c = 0; c < key.size(); ++c) key[c] += correction[c];
  return key;
}

// z* / m = 1 - KL / m.
ZipScale zip_scale(const ClusterMean& mean, VectorView log_scores) {
  if (mean.divergence == 0) return {};
  if (std::abs(mean.mean_log_score) <= kSingularZip * max_abs(log_scores)) return {1, true};
  return {1 - mean.divergence / mean.mean_log_score, false};
}

std::vector<double> zip_key(const MergeQueries& queries, const std::vector<ClusterMean>& means,
                            const ZipScale& zip) {
  if (zip.singular) return min_norm_key(queries, means);
  std::vector<double> key = means.front().key;
  for (double& number : key) number *= zip.scale;
  return key;
}

}  // namespace

// The merging step of the paper's Algorithm 1; score_ema.hpp predicts the scores,
// merge_targets.hpp forms the clusters.
std::vector<MergedEntry> keep_kv(const MergingCache& cache, std::span<const std::vector<int64_t>> clusters,
                                 const MergeQueries& queries) {
  std::vector<MergedEntry> merged;
  for (const std::vector<int64_t>& cluster : clusters) {
    if (cluster.empty()) throw ShapeMismatch("a cluster of no members");
    require_consistent(queries, cache);
    // The kept entry c and the evicted entries e that merge with it, with their votes p
    // and predicted scores s^.
    const ClusterMembers members = members_of(cache, cluster);
    // Weights w_j = p_j s^_j, W = sum w: k- = sum w k / W, v- = sum w v / W, for each query head.
    const std::vector<ClusterMean> means = cluster_means(queries, members);
    MergedEntry& r = merged.emplace_back();
    switch (queries.rule().key) {
      case MergedKey::zip:  // eq. 25: k_r = k- ln(W / P) / sum (w / W) ln s^
        r.zip = zip_scale(means.front(), queries.merging_scores(members.log_scores).row(0));
        r.key = zip_key(queries, means, r.zip);
        break;
      case MergedKey::
          min_norm:  // ours: the key nearest to k- that has the logit ln(W / P), as eq. 25's key has
        r.key = min_norm_key(queries, means);
        break;
      case MergedKey::convex:  // the paper's baseline: k_r = k-
        r.key = mean_key(means);
        break;
    }
    // Eq. 25: v_r = v-; for several query heads the value with the smallest summed squared error.
    r.value = joint_value(queries, means);
    // Electoral votes: p_r = P = sum p.
    r.votes = sum(members.votes);
    // The predicted score of r: s^_r = W / P.
    for (int64_t h = 0; h < queries.heads(); ++h) {
      r.log_scores.push_back(log_mean_score(members.votes, members.log_scores.row(h)));
    }
    require_finite("a merged key", r.key);
    require_finite("a merged value", r.value);
  }
  return merged;
}

MergedEntry merge_cluster(const MergeQueries& queries, const ClusterMembers& members) {
  std::vector<int64_t> all(members.keys.rows());
  std::iota(all.begin(), all.end(), 0);
  const MergingCache cache{members.keys, members.values, members.votes, members.log_scores};
  return keep_kv(cache, std::span(&all, 1), queries).front();
}

MergeQueries::MergeQueries(const KeyRule& rule, MatrixView queries, double scale,
                           std::vector<double> log_denominators)
    : rule_(rule), heads_(queries.rows), log_denominators_(std::move(log_denominators)) {
  if (rule.key == MergedKey::zip && rule.gqa == MergeGqa::joint && heads_ > 1) {
    throw InvalidPolicy("key=zip takes one score and one query: it goes with gqa=mean, not with gqa=joint");
  }
  const bool joint = rule.gqa == MergeGqa::joint && heads_ > 1;
  if (joint) {
    require_equal("log_denominators", std::ssize(log_denominators_), "query heads", heads_);
  } else {
    log_denominators_.clear();
  }
  const Matrix mean = joint ? Matrix() : mean_row(queries);
  const MatrixView merging = joint ? queries : mean.view();
  queries_ = Matrix(merging.rows, merging.cols);
  for (int64_t h = 0; h < merging.rows; ++h) {
    for (int64_t c = 0; c < merging.cols; ++c) queries_(h, c) = scale * merging(h, c);
  }
  if (rule.key != MergedKey::convex) inverse_ = PseudoInverse(queries_, rule.rank);
}

Matrix MergeQueries::merging_scores(MatrixView log_scores) const {
  if (queries_.rows() == 1) return mean_row(log_scores);
  Matrix scores(0, log_scores.cols);
  for (int64_t h = 0; h < log_scores.rows; ++h) scores.append_row(log_scores.row(h));
  return scores;
}

double MergeQueries::logit(int64_t head, VectorView vector) const {
  return inner_product(queries_.row(head), vector);
}

std::vector<double> MergeQueries::correction(VectorView logits) const {
  std::vector<double> shift = inverse_.solve(logits);
  const bool finite = std::ranges::all_of(shift, [](double number) { return std::isfinite(number); });
  return finite ? shift : std::vector<double>(shift.size());
}

double MergeQueries::log_denominator(int64_t head) const {
  return log_denominators_.empty() ? 0 : log_denominators_[head];
}

ClusterMean cluster_mean(const ClusterMembers& members, VectorView log_scores) {
  require_finite("log_scores", log_scores);
  require_equal("log_scores", std::ssize(log_scores), "rows of keys", members.keys.rows());
  const size_t count = log_scores.size();
  const double all_votes = sum(members.votes);
  ClusterMean mean;
  std::vector<double> shares(count), apart(count);
  for (size_t j = 0; j < count; ++j) {
    mean.weights.push_back(std::log(members.votes[j]) + log_scores[j]);
    shares[j] = members.votes[j] / all_votes;
    apart[j] = log_scores[j] - log_scores[0];  // exactly 0 where scores are equal
  }
  const double largest = *std::ranges::max_element(mean.weights);
  mean.log_weight = largest + std::log(softmax(mean.weights, largest, mean.weights));
  const double middle = inner_product(mean.weights, apart);
  for (double& difference : apart) difference -= middle;
  mean.divergence = divergence(shares, apart);
  mean.mean_log_score = log_scores[0] + middle;
  mean.key = weighted_mean(mean.weights, members.keys);
  mean.value = weighted_mean(mean.weights, members.values);
  return mean;
}

double log_mean_score(VectorView votes, VectorView log_scores) {
  std::vector<double> logits(votes.size());
  for (size_t j = 0; j < logits.size(); ++j) logits[j] = std::log(votes[j]) + log_scores[j];
  return log_sum_exp(logits) - std::log(sum(votes));
}

}  // namespace kvbound::reference
