#include "merge_bounds.hpp"

#include <algorithm>
#include <limits>

namespace kvbound::oracle {
namespace {

exact::Vectors values_of(const Rows& rows) {
  exact::Vectors result;
  for (const Row& row : rows) result.push_back(values_of(row));
  return result;
}

Real length(const Reals& vector) { return sqrt(dot(vector, vector)); }

// The length of the largest error that a vector may have.
Real length_of_bounds(const Row& row) {
  Reals bounds;
  for (const Bounded& number : row) bounds.push_back(number.bound);
  return length(bounds);
}

// One head's means if the heads' queries and scores are averaged, or each head's.
struct Heads {
  Heads(const KeyRule& rule, MatrixView all_queries, double scale, const reference::ClusterMembers& members,
        const Rows& all_scores)
      : queries(exactly(all_queries)), log_scores(all_scores) {
    if (rule.gqa == MergeGqa::mean && queries.size() > 1) {
      queries = {mean(queries)};
      log_scores = {mean(log_scores)};
    }
    for (Row& query : queries) {
      for (Bounded& number : query) number = Bounded(scale) * number;
    }
    const EntriesOf<Bounded> entries{exactly(members.keys), exactly(members.values),
                                     exactly(VectorView(members.votes))};
    for (const Row& scores : log_scores) means.emplace_back(entries, scores);
  }

  Rows queries, log_scores;
  std::vector<ClusterMeanOf<Bounded>> means;
};

// The key, corrected so that the queries' logits meet their targets; the correction is 0 if a double cannot
// represent it. One key for each rank that rounding may lead to, or none.
std::vector<Row> min_norm_keys(double rank, const Heads& heads, const JointMeanOf<Bounded>& joint) {
  const BoundedInverse inverse(heads.queries);
  std::vector<Row> keys;
  for (const size_t directions : inverse.ranks(rank)) {
    const std::optional<Row> correction = inverse.solution(joint.missing, directions);
    if (!correction) return {};
    const bool is_finite = std::ranges::all_of(*correction, [](const Bounded& number) {
      return abs(number.value) <= std::numeric_limits<double>::max();
    });
    Row& key = keys.emplace_back(joint.key);
    for (size_t c = 0; c < key.size() && is_finite; ++c) key[c] = key[c] + (*correction)[c];
  }
  return keys;
}

void zip(double rank, const Heads& heads, const JointMeanOf<Bounded>& joint, MergedCluster& result) {
  const ClusterMeanOf<Bounded>& mean = heads.means.front();
  result.keys = {joint.key};
  if (mean.divergence.value == 0) return;
  Bounded most;
  for (const Bounded& score : heads.log_scores.front()) {
    most.value = std::max<Real>(most.value, abs(score.value));
    most.bound = std::max(most.bound, score.bound);
  }
  const Bounded above_limit = abs(mean.mean_score) - Bounded(1e-12) * most;
  result.singular = above_limit.value <= 0;
  // A divergence that may be computed as 0 gives a scale of 1, which is right unless m vanishes, too.
  if (abs(above_limit.value) <= above_limit.bound ||
      (result.singular && mean.divergence.value <= mean.divergence.bound)) {
    result.keys.clear();
  } else if (result.singular) {
    result.keys = min_norm_keys(rank, heads, joint);
  } else {
    result.zip_scale = Bounded(1) - mean.divergence / mean.mean_score;
    for (Bounded& number : result.keys.front()) number = number * result.zip_scale;
  }
}

}  // namespace

// Reflections, rotations and the final scaling, relative to the Frobenius norm.
BoundedInverse::BoundedInverse(const Rows& rows) : singular_(values_of(rows)) {
  const int64_t few = std::min(std::ssize(rows), std::ssize(rows.front())),
                many = std::max(std::ssize(rows), std::ssize(rows.front()));
  Real squares = 0, errors = 0;
  for (const Row& row : rows) {
    squares += exact::squared(values_of(row));
    errors += length_of_bounds(row);
  }
  backward_ = gamma(few * (4 * many + 24) + 48 * few * (few - 1) + 8 * few) * sqrt(squares);
  off_ = errors + backward_;
}

std::vector<size_t> BoundedInverse::ranks(double share) const {
  const Reals& sigmas = singular_.sigmas;
  if (sigmas.front() == 0) return {0};
  // What is computed for a singular value of 0 is dropped.
  const Real least = std::max(Real(share), Real(1e-14)) * sigmas.front();
  const size_t most = std::min(sigmas.size(), singular_.right.front().size());
  std::vector<size_t> result;
  for (size_t rank = 1; rank <= most; ++rank) {  // the largest is never dropped
    const bool has_enough = rank == 1 || sigmas[rank - 1] >= least - 2 * off_;
    if (has_enough && (rank == most || sigmas[rank] < least + 2 * off_)) result.push_back(rank);
  }
  return result;
}

// With A the rows, B = sum sigma_i u_i v_i^T without the dropped terms, B~ the same from the computed
// factors: |B~ - B| <= off if none is dropped, else off (1 + sigma_1 / (sigma_r - sigma_{r+1} - off)), since
// subspaces rotate (Wedin 1972); |B~^+ - B^+| <= (1 + sqrt 5)/2 |B~ - B| |B^+| |B~^+| (Wedin 1973),
// |B~^+| <= 1 / (sigma_r - off).
std::optional<Row> BoundedInverse::solution(const Row& targets, size_t rank) const {
  if (rank == 0) return Row(singular_.right.front().size());
  const Reals& sigmas = singular_.sigmas;
  const size_t most = std::min(sigmas.size(), singular_.right.front().size());
  const Real& smallest = sigmas[rank - 1];
  const Real gap = rank == most ? smallest : Real(smallest - sigmas[rank]);
  if (!(gap > 4 * off_) || !(smallest > 4 * off_)) return std::nullopt;
  const Real moved = rank == most ? off_ : Real(off_ * (1 + sigmas.front() / (gap - off_)));
  const Real golden = (1 + sqrt(Real(5))) / 2, error = length_of_bounds(targets);
  const Real size = length(values_of(targets)) + error;
  const Real factors = 4 * backward_ / sigmas.front() + gamma(2 * std::ssize(targets) + 6);
  const Real bound = (error + (golden * moved / smallest + factors) * size) / (smallest - off_);
  Row result;
  for (const Real& number : singular_.solution(values_of(targets), rank))
    result.push_back(rounded(number, bound));
  return result;
}

MergedCluster merge_cluster(const KeyRule& rule, MatrixView queries, double scale,
                            const reference::ClusterMembers& members, const Rows& log_scores,
                            const Row& log_denominators) {
  const Heads heads(rule, queries, scale, members, log_scores);
  const JointMeanOf<Bounded> joint(heads.means, heads.queries, log_denominators);
  MergedCluster result;
  result.value = joint.value;
  result.votes = joint.votes;
  for (const Row& scores : log_scores)
    result.log_scores.push_back(log_mean_score(exactly(VectorView(members.votes)), scores));
  switch (rule.key) {
    case MergedKey::min_norm:
      result.keys = min_norm_keys(rule.rank, heads, joint);
      break;
    case MergedKey::zip:
      zip(rule.rank, heads, joint, result);
      break;
    case MergedKey::convex:
      result.keys = {joint.key};
  }
  return result;
}

}  // namespace kvbound::oracle
