#include "merge_rounding.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/merging/merge_baselines.hpp>
#include <kvbound/reference/merging/weighted_mean.hpp>

namespace kvbound::proofs {
namespace {

using exact::ClusterMean;
using exact::Real;
using exact::Reals;
using oracle::Bounded;
using oracle::Row;
using oracle::Rows;

// The members of a cluster in doubles, as the reference's input,
// with ln s^ of heads first_head..first_head + count - 1.
reference::ClusterMembers members_of(const Instance& instance, const MergingCase& merging,
                                     const Cluster& cluster, size_t first_head, size_t count) {
  reference::ClusterMembers members;
  members.log_scores = Matrix(static_cast<int64_t>(count), std::ssize(cluster));
  for (size_t j = 0; j < cluster.size(); ++j) {
    members.keys.append_row(merging.keys.row(cluster[j]));
    members.values.append_row(instance.values.row(cluster[j]));
    members.votes.push_back(instance.votes[cluster[j]]);
    for (size_t h = 0; h < count; ++h) {
      members.log_scores(h, j) = static_cast<double>(merging.heads[first_head + h].predicted[cluster[j]]);
    }
  }
  return members;
}

Row with_values(Row row, const Reals& exact) {
  for (size_t i = 0; i < row.size(); ++i) row[i].value = exact[i];
  return row;
}

void hold(const std::string& what, VectorView computed, const Row& expected, Outcome& outcome) {
  outcome.reference_holds(what + " has its size", computed.size() == expected.size());
  for (size_t i = 0; i < expected.size() && i < computed.size(); ++i)
    outcome.reference_within(what, computed[i], expected[i]);
}

Row column_means(const Rows& rows) {
  Row result;
  for (size_t c = 0; c < rows.front().size(); ++c) {
    Row column;
    for (const Row& row : rows) column.push_back(row[c]);
    result.push_back(oracle::sum(column) / Bounded(static_cast<double>(rows.size())));
  }
  return result;
}

// sum_j weights_j rows[j,:]
Row weighted_sum(const Row& weights, MatrixView rows) {
  Row result;
  for (int64_t c = 0; c < rows.cols; ++c) {
    Row column;
    for (int64_t j = 0; j < rows.rows; ++j) column.emplace_back(rows(j, c));
    result.push_back(oracle::dot(weights, column));
  }
  return result;
}

// |expm1(x + d) - expm1(x)| <= exp(x) (d + d^2), d <= 1
Bounded exponential_less_one(const Bounded& x) {
  const Real grown = exp(x.value);
  return oracle::rounded(grown - 1, grown * x.bound * (1 + x.bound), 2);
}

// The log scores; the bounds are those of rounding to the doubles that the reference is given.
Row given(const Reals& log_scores) {
  Row result;
  for (const Real& score : log_scores)
    result.emplace_back(score, abs(score - Real(static_cast<double>(score))));
  return result;
}

Row voted(VectorView votes, const Row& log_scores) {
  Row result;
  for (size_t j = 0; j < votes.size(); ++j) result.push_back(oracle::log(Bounded(votes[j])) + log_scores[j]);
  return result;
}

// ---- cluster_mean

struct BoundedMean {
  BoundedMean(const reference::ClusterMembers& members, const Row& log_scores, const ClusterMean& exact);

  Row weights;
  Bounded log_weight, mean_score, divergence;
  Row key, value;
};

// The bound of -ln(1 + sum shares expm1(x)) or, where that sum is at most -1/2, of -ln sum shares exp(x); where
// rounding decides between the forms, the larger bound.
Bounded divergence(const Row& shares, const Row& centred) {
  Row less_one, whole;
  for (const Bounded& x : centred) {
    less_one.push_back(exponential_less_one(x));
    whole.push_back(oracle::exp(x));
  }
  const Bounded below = oracle::dot(shares, less_one), all = oracle::dot(shares, whole);
  Bounded result;
  if (below.value + below.bound > -0.5) {
    const Real rest = 1 + below.value;
    result.bound = oracle::rounded(log(rest), below.bound / (rest - below.bound), 2).bound;
  }
  if (below.value - below.bound <= -0.5) result.bound = std::max<Real>(result.bound, oracle::log(all).bound);
  return result;
}

BoundedMean::BoundedMean(const reference::ClusterMembers& members, const Row& log_scores,
                         const ClusterMean& exact) {
  const Row logits = voted(members.votes, log_scores), votes = oracle::exactly(VectorView(members.votes));
  weights = with_values(oracle::softmax(logits), exact.weights);
  log_weight = {exact.log_weight, oracle::log_sum_exp(logits).bound};
  Row shares, apart;
  for (size_t j = 0; j < log_scores.size(); ++j) {
    shares.push_back(votes[j] / oracle::sum(votes));
    apart.push_back(j == 0 ? Bounded(0.0) : log_scores[j] - log_scores[0]);
  }
  const Bounded middle = oracle::dot(weights, apart);
  for (Bounded& difference : apart) difference = difference - middle;
  divergence = {exact.divergence, proofs::divergence(shares, apart).bound};
  mean_score = {exact.mean_score, (log_scores[0] + middle).bound};
  key = with_values(weighted_sum(weights, members.keys), exact.key);
  value = with_values(weighted_sum(weights, members.values), exact.value);
}

// ln(W / P)
Bounded log_mean_score(VectorView votes, const Row& log_scores, const Real& exact) {
  const Bounded sum = oracle::sum(oracle::exactly(votes));
  return {exact, (oracle::log_sum_exp(voted(votes, log_scores)) - oracle::log(sum)).bound};
}

// ---- the pseudo-inverse

Real length(const Reals& vector) { return exact::norm(vector, exact::Norm::l2); }

// The minimum-norm solution along the first `rank` directions of `rows`, which have an error of at most `off` in the
// 2-norm. The reference computes the singular values and vectors of a matrix at most `off` + `backward` away, the
// vectors to within 2 `backward` / sigma_1 (proofs/keep_kv.md, "How the reference is held to this").
class BoundedInverse {
 public:
  BoundedInverse(const exact::Vectors& rows, const Real& off) : singular_(rows) {
    const auto n = std::ssize(rows), m = std::ssize(rows.front());
    Real size = 0;
    for (const Reals& row : rows) size += exact::squared(row);
    backward_ = oracle::gamma(n * (4 * m + 24) + 48 * n * (n - 1) + 8 * n) * sqrt(size);
    off_ = off + backward_;
  }

  // The ranks that the reference may find after rounding, the exact rank included.
  std::vector<size_t> ranks(double share) const {
    std::vector<size_t> result;
    const Reals& sigmas = singular_.sigmas;
    for (size_t rank = 1; rank <= sigmas.size(); ++rank) {
      const Real slack = 2 * off_, least = share * sigmas.front();
      const bool has_enough = sigmas[rank - 1] >= least - slack;
      const bool has_all = rank == sigmas.size() || sigmas[rank] < least + slack;
      if (has_enough && has_all) result.push_back(rank);
    }
    return result;
  }
  // Whether the kept directions are well separated from the dropped ones, relative to the errors.
  bool told_apart(size_t rank) const { return gap(rank) > 4 * off_ && singular_.sigmas[rank - 1] > 4 * off_; }

  Row solution(const Row& targets, size_t rank) const {
    Reals exact_targets;
    Real error = 0;
    for (const Bounded& target : targets) {
      exact_targets.push_back(target.value);
      error += target.bound;
    }
    const Real most = singular_.sigmas.front(), least = singular_.sigmas[rank - 1] - off_;
    const Real size = length(exact_targets) + error;
    const bool all = rank == singular_.sigmas.size();
    const Real moved = off_ * (1 + (all ? Real(0) : Real(most / (gap(rank) - off_))));
    const auto n = std::ssize(targets);
    error =
        (error + 2 * moved / least * size + (4 * backward_ / most + oracle::gamma(2 * n + 6)) * size) / least;
    Row result;
    for (const Real& number : singular_.solution(exact_targets, rank)) result.emplace_back(number, error);
    return result;
  }

 private:
  Real gap(size_t rank) const {
    return rank == singular_.sigmas.size() ? singular_.sigmas[rank - 1]
                                           : Real(singular_.sigmas[rank - 1] - singular_.sigmas[rank]);
  }

  exact::SingularValues singular_;
  Real backward_, off_;
};

// ---- merge_cluster

// Whether all computed numbers are within their bounds.
bool are_within(VectorView computed, const Row& expected) {
  for (size_t c = 0; c < expected.size(); ++c) {
    if (!(abs(Real(computed[c]) - expected[c].value) <= expected[c].bound)) return false;
  }
  return computed.size() == expected.size();
}

// A merge with bounds: from each head's scores and query (joint), or from their means (mean).
class BoundedMerge {
 public:
  BoundedMerge(const KeyRule& rule, const MergingCase& merging, const Cluster& cluster,
               const reference::ClusterMembers& members)
      : rule_(rule) {
    const exact::Vectors queries = merging.first_queries();
    std::vector<Reals> scores;
    for (size_t h = 0; h < queries.size(); ++h) scores.push_back(merging.predicted(h, cluster));
    const exact::Entries exact_members = merging.cache.at(cluster);
    if (rule.gqa == MergeGqa::joint) {
      queries_ = queries;
      for (const Reals& row : scores) add_head(members, exact_members, given(row), row);
      for (size_t h = 0; h < queries.size(); ++h) log_denominators_.push_back(merging.log_denominator(h));
    } else {
      queries_ = {mean(queries)};
      Rows rows;
      for (const Reals& row : scores) rows.push_back(given(row));
      const Reals one = mean(scores);
      add_head(members, exact_members, with_values(column_means(rows), one), one);
      log_denominators_ = {0};
    }
    // Rounding of the product with the scale, and of a mean's sum and quotient. Relative to each query's own length,
    // because queries may cancel in their mean.
    for (const Reals& query : queries) off_ += oracle::gamma(std::ssize(queries) + 3) * length(query);
  }

  void hold(const reference::MergedEntry& computed, Outcome& outcome) const {
    proofs::hold("a merged value", computed.value, value(), outcome);
    switch (rule_.key) {
      case MergedKey::min_norm:
        return hold_min_norm(computed, outcome);
      case MergedKey::zip:
        return hold_zip(computed, outcome);
      case MergedKey::convex:
        return proofs::hold("a merged key", computed.key, mean_key(), outcome);
    }
  }

 private:
  static Reals mean(const std::vector<Reals>& rows) {
    Reals sum(rows.front().size());
    for (const Reals& row : rows) sum = exact::combination(1, sum, 1, row);
    return exact::scaled(Real(1) / std::ssize(rows), sum);
  }

  void add_head(const reference::ClusterMembers& members, const exact::Entries& exact_members,
                const Row& scores, const Reals& exact_scores) {
    exact_.emplace_back(exact_members, exact_scores);
    scores_ = scores;
    means_.emplace_back(members, scores, exact_.back());
  }

  // The joint value, weighted by c_h / sum c.
  Row value() const {
    if (means_.size() == 1) return means_.front().value;
    Row log_shares;
    for (size_t h = 0; h < means_.size(); ++h) {
      const Bounded denominator(log_denominators_[h],
                                abs(log_denominators_[h] - Real(static_cast<double>(log_denominators_[h]))));
      log_shares.push_back(Bounded(2.0) * (means_[h].log_weight - denominator));
    }
    const Row shares = oracle::softmax(log_shares);
    Row result;
    for (size_t c = 0; c < means_.front().value.size(); ++c) {
      Row column;
      for (const BoundedMean& mean : means_) column.push_back(mean.value[c]);
      result.push_back(oracle::dot(shares, column));
    }
    return with_values(result, joint().value);
  }

  exact::JointMean joint() const { return {exact_, queries_, log_denominators_}; }

  Row mean_key() const {
    Rows keys;
    for (const BoundedMean& mean : means_) keys.push_back(mean.key);
    return with_values(column_means(keys), joint().key);
  }

  // Each query's target logit minus its logit of the mean key.
  Row missing() const {
    const Row key = mean_key();
    Row result;
    for (size_t h = 0; h < means_.size(); ++h) {
      Row query, apart;
      for (size_t c = 0; c < key.size(); ++c) {
        query.emplace_back(queries_[h][c], off_);
        apart.push_back(means_.size() == 1 ? Bounded(0.0) : means_[h].key[c] - key[c]);
      }
      result.push_back(oracle::dot(query, apart) - means_[h].divergence);
    }
    return with_values(result, joint().missing);
  }

  // Holds the computed key to the minimum-norm key of one of the ranks that the reference may find.
  void hold_min_norm(const reference::MergedEntry& computed, Outcome& outcome) const {
    const BoundedInverse inverse(queries_, off_);
    const Row key = mean_key(), targets = missing();
    std::optional<Row> nearest;
    for (const size_t rank : inverse.ranks(rule_.rank)) {
      if (!inverse.told_apart(rank)) return;  // no bound can be given
      Row expected;
      const Row correction = inverse.solution(targets, rank);
      for (size_t c = 0; c < key.size(); ++c) expected.push_back(key[c] + correction[c]);
      if (!nearest || are_within(computed.key, expected)) nearest = expected;
    }
    if (nearest) proofs::hold("a merged key", computed.key, *nearest, outcome);
  }

  void hold_zip(const reference::MergedEntry& computed, Outcome& outcome) const {
    const BoundedMean& mean = means_.front();
    if (mean.divergence.value == 0) {
      outcome.reference_holds("equal scores have the scale 1",
                              computed.zip.scale == 1 && !computed.zip.singular);
      return proofs::hold("a merged key", computed.key, mean.key, outcome);
    }
    if (mean.divergence.value <= mean.divergence.bound) return;  // rounding decides whether KL is 0
    Real largest = 0;
    for (const Bounded& score : scores_) largest = std::max<Real>(largest, abs(score.value) + score.bound);
    const Real size = abs(mean.mean_score.value), bound = mean.mean_score.bound,
               least = Real("1e-12") * largest;
    if (size + bound < least * (1 - Real("1e-9"))) {
      outcome.reference_holds("m next to 0 is singular", computed.zip.singular && computed.zip.scale == 1);
      return hold_min_norm(computed, outcome);
    }
    if (size - bound <= least * (1 + Real("1e-9"))) return;  // rounding decides whether m is singular
    outcome.reference_holds("a mean score away from 0 is not singular", !computed.zip.singular);
    Bounded scale = Bounded(1.0) - mean.divergence / mean.mean_score;
    scale.value = 1 - exact_.front().divergence / exact_.front().mean_score;
    outcome.reference_within("ZIP's scale", computed.zip.scale, scale);
    Row expected;
    for (const Bounded& number : mean.key) expected.push_back(number * scale);
    proofs::hold("a merged key", computed.key, expected, outcome);
  }

  KeyRule rule_;
  exact::Vectors queries_;  // multiplied by the scale
  Real off_ = 0;            // error of the rows of queries, in the 2-norm
  std::vector<ClusterMean> exact_;
  std::vector<BoundedMean> means_;
  Row scores_;  // of the last head added
  Reals log_denominators_;
};

reference::MergeQueries merge_queries(const KeyRule& rule, const MergingCase& merging) {
  Matrix queries;
  std::vector<double> log_denominators;
  const auto per_head = std::ssize(merging.heads.front().queries);
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    queries.append_row(merging.queries.row(static_cast<int64_t>(h) * per_head));
    log_denominators.push_back(static_cast<double>(merging.log_denominator(h)));
  }
  return {rule, queries, kScale, log_denominators};
}

// ---- the weights of other methods

Row similarity_weights(const exact::Vectors& keys) {
  const auto d = std::ssize(keys.front());
  Row cosines;  // |error of x . y / (||x|| ||y||)|: a dot product, two norms, their product, a quotient
  for (size_t j = 0; j < keys.size(); ++j) {
    const Real size = sqrt(exact::squared(keys[j]) * exact::squared(keys.front()));
    const Real cosine = j == 0     ? Real(1)
                        : size > 0 ? Real(exact::inner_product(keys[j], keys.front()) / size)
                                   : Real(0);
    cosines.emplace_back(cosine, oracle::gamma(2 * d + 8));
  }
  return with_values(oracle::softmax(cosines), exact::similarity_weights(keys));
}

Row gaussian_weights(const exact::Vectors& keys) {
  const auto d = std::ssize(keys.front()), n = std::ssize(keys);
  Real sum = 0;
  for (const Reals& key : keys) sum += exact::squared(exact::difference(key, keys.front()));
  Row exponents;  // relative errors: of differences, squares and their sum; of the sum of those; of the quotients
  for (const Reals& key : keys) {
    const Real squared = exact::squared(exact::difference(key, keys.front()));
    const Real exponent = sum > 0 ? Real(-squared * (n - 1) / (2 * sum)) : Real(0);
    exponents.emplace_back(exponent, oracle::gamma(2 * d + n + 12) * abs(exponent));
  }
  return with_values(oracle::softmax(exponents), exact::gaussian_weights(keys));
}

}  // namespace

void hold_convex_weights(const MergingCase& merging, Outcome& outcome) {
  for (const Cluster& cluster : merging.clusters) {
    Matrix keys;
    for (const int64_t member : cluster) keys.append_row(merging.keys.row(member));
    const exact::Vectors exact_keys = exact::vectors(keys);
    const Row similar = proofs::similarity_weights(exact_keys),
              gaussian = proofs::gaussian_weights(exact_keys);
    const std::vector<double> weights = reference::similarity_weights(keys);
    hold("D2O's weight", weights, similar, outcome);
    hold("KVMerger's weight", reference::gaussian_weights(keys), gaussian, outcome);
    hold("a weighted mean", reference::weighted_mean(weights, keys),
         weighted_sum(oracle::exactly(VectorView(weights)), keys), outcome);
  }
}

void hold_cluster_means(const Instance& instance, const MergingCase& merging, Outcome& outcome) {
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const reference::ClusterMembers members = members_of(instance, merging, cluster, h, 1);
    const reference::ClusterMean computed = reference::cluster_mean(members, members.log_scores.row(0));
    const ClusterMean exact = merging.mean(h, cluster);
    const Row scores = given(merging.predicted(h, cluster));
    const BoundedMean expected(members, scores, exact);
    hold("a member's share", computed.weights, expected.weights, outcome);
    outcome.reference_within("ln W", computed.log_weight, expected.log_weight);
    outcome.reference_within("m", computed.mean_log_score, expected.mean_score);
    outcome.reference_within("KL", computed.divergence, expected.divergence);
    outcome.reference_holds("KL >= 0", computed.divergence >= 0);
    hold("a mean key", computed.key, expected.key, outcome);
    hold("a mean value", computed.value, expected.value, outcome);
    outcome.reference_within("ln(W / P)", reference::log_mean_score(members.votes, members.log_scores.row(0)),
                             log_mean_score(members.votes, scores, exact.target));
  });
}

void hold_merges(const KeyRule& rule, const Instance& instance, const MergingCase& merging,
                 Outcome& outcome) {
  const reference::MergeQueries queries = merge_queries(rule, merging);
  for (const Cluster& cluster : merging.clusters) {
    const reference::ClusterMembers members = members_of(instance, merging, cluster, 0, merging.heads.size());
    const reference::MergedEntry computed = reference::merge_cluster(queries, members);
    BoundedMerge(rule, merging, cluster, members).hold(computed, outcome);
    const Bounded votes = oracle::sum(oracle::exactly(VectorView(members.votes)));
    outcome.reference_within("the votes", computed.votes, votes);
    for (size_t h = 0; h < merging.heads.size(); ++h) {
      const Row scores = given(merging.predicted(h, cluster));
      outcome.reference_within("what is predicted of a merged entry", computed.log_scores[h],
                               log_mean_score(members.votes, scores, merging.mean(h, cluster).target));
    }
  }
}

namespace {

void hold_attention(const Matrix& queries, const Matrix& keys, const Matrix& values,
                    const std::vector<double>& votes, Outcome& outcome) {
  const reference::AttentionOutput computed = reference::attention(queries, keys, values, kScale, votes);
  const oracle::Attention expected = oracle::attention(queries, keys, values, kScale, votes);
  for (int64_t i = 0; i < queries.rows(); ++i) {
    const int64_t index = i;
    hold("an output with votes", computed.output.row(i), expected.output[index], outcome);
    outcome.reference_within("a log-sum-exp with votes", computed.log_sum_exp[index],
                             expected.log_sum_exp[index]);
  }
}

}  // namespace

void hold_attention(const Instance& instance, const MergingCase& merging, Outcome& outcome) {
  hold_attention(merging.queries, merging.keys, instance.values, instance.votes, outcome);
  if (merging.clusters.empty()) return;
  const Cluster& cluster = merging.clusters.front();
  const reference::MergedEntry merged =
      reference::merge_cluster(merge_queries({MergedKey::min_norm, MergeGqa::joint, 0}, merging),
                               members_of(instance, merging, cluster, 0, merging.heads.size()));
  Matrix keys, values;
  std::vector<double> votes;
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    if (std::ranges::find(cluster, j) != cluster.end()) continue;
    keys.append_row(merging.keys.row(j));
    values.append_row(instance.values.row(j));
    votes.push_back(instance.votes[j]);
  }
  keys.append_row(merged.key);
  values.append_row(merged.value);
  votes.push_back(merged.votes);
  hold_attention(merging.queries, keys, values, votes, outcome);
}

void hold_chains(const Instance& instance, const MergingCase& merging, Outcome& outcome) {
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const reference::ClusterMembers members = members_of(instance, merging, cluster, h, 1);
    const VectorView scores = members.log_scores.row(0);
    double votes = members.votes[0], score = scores[0];
    Bounded expected(score);
    for (size_t j = 1; j < cluster.size(); ++j) {
      const std::vector<double> pair_votes{votes, members.votes[j]}, pair{score, scores[j]};
      score = reference::log_mean_score(pair_votes, pair);
      expected = log_mean_score(pair_votes, {expected, Bounded(scores[j])}, 0);
      votes += members.votes[j];
    }
    const Row all = given(merging.predicted(h, cluster));
    expected.bound += log_mean_score(members.votes, all, 0).bound;
    expected.value = merging.mean(h, cluster).target;
    outcome.reference_within("ln(W / P), one by one", score, expected);
  });
}

}  // namespace kvbound::proofs
