#include "merging.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace kvbound::oracle {
namespace {

// sum (w/W) ln((w/W) / (p/P)). For scores less than 10^-15 apart, whose shares differ by too little for 50
// digits: the cumulants of the scores by shares p/P, kappa_2 / 2 + kappa_3 / 3, which differs by less than
// the fourth power of the distance.
Real divergence_of(const Reals& votes, const Reals& log_scores, const Reals& weights) {
  const Real all_votes = sum(votes);
  Reals shares, apart;
  Real furthest = 0;
  for (size_t j = 0; j < votes.size(); ++j) {
    shares.push_back(votes[j] / all_votes);
    apart.push_back(log_scores[j] - log_scores[0]);
    furthest = std::max<Real>(furthest, abs(apart[j]));
  }
  const Real middle = dot(shares, apart);
  Real direct = 0, second = 0, third = 0;
  for (size_t j = 0; j < votes.size(); ++j) {
    const Real centred = apart[j] - middle, square = shares[j] * centred * centred;
    direct += weights[j] * log(weights[j] / shares[j]);
    second += square;
    third += square * centred;
  }
  return furthest > Real("1e-15") ? direct : Real(second / 2 + third / 3);
}

// e^x - 1, accurate to 1 ulp in the C library.
Bounded expm1(const Bounded& x) {
  const Bounded power = exp(x);
  return rounded(power.value - 1, power.value * x.bound * (1 + x.bound), 2);
}

// -ln(1 + sum (p/P) expm1(x)), x the scores minus their mean, or, where that sum is at most -1/2, -ln sum
// (p/P) exp(x); where rounding decides between the forms, with the larger bound.
Real divergence_bound(const Row& votes, const Row& centred) {
  const Bounded all_votes = sum(votes);
  Row shares, less_one, whole;
  for (size_t j = 0; j < votes.size(); ++j) {
    shares.push_back(votes[j] / all_votes);
    less_one.push_back(expm1(centred[j]));
    whole.push_back(exp(centred[j]));
  }
  const Bounded below = dot(shares, less_one);
  Real bound = 0;
  if (below.value + below.bound > -0.5) {
    const Real rest = 1 + below.value;
    bound = rounded(log(rest), below.bound / (rest - below.bound), 2).bound;
  }
  if (below.value - below.bound <= -0.5) bound = std::max<Real>(bound, log(dot(shares, whole)).bound);
  return bound;
}

Real divergence(const Reals& votes, const Reals& log_scores, const Reals& weights, const Reals&) {
  return divergence_of(votes, log_scores, weights);
}
Bounded divergence(const Row& votes, const Row& log_scores, const Row& weights, const Row& centred) {
  return {divergence_of(values_of(votes), values_of(log_scores), values_of(weights)),
          divergence_bound(votes, centred)};
}

const Real& value_of(const Real& number) { return number; }
const Real& value_of(const Bounded& number) { return number.value; }
Real divided(const Real& number, const Real& size) { return number / size; }
Bounded divided(const Bounded& number, const Real& size) {
  return {number.value / size, number.bound / size};
}

// The row in units of its largest number, so that nothing underflows; no weight depends on the unit.
template <class Number>
RowOf<Number> unit_sized(const RowOf<Number>& row) {
  Real size = 0;
  for (const Number& number : row) size = std::max<Real>(size, abs(value_of(number)));
  RowOf<Number> result;
  for (const Number& number : row) result.push_back(size == 0 ? number : divided(number, size));
  return result;
}

template <class Number>
bool is_zero(const RowOf<Number>& row) {
  return std::ranges::all_of(row, [](const Number& number) { return value_of(number) == 0; });
}

template <class Number>
RowOf<Number> normalised(const RowOf<Number>& log_weights) {
  RowOf<Number> weights;
  for (const Number& log_weight : log_weights) weights.push_back(exp(log_weight));
  const Number total = sum(weights);
  for (Number& weight : weights) weight = weight / total;
  return weights;
}

}  // namespace

template <class Number>
EntriesOf<Number> EntriesOf<Number>::at(Indices indices) const {
  EntriesOf result;
  for (const int64_t i : indices) {
    const int64_t index = i;
    result.keys.push_back(keys[index]);
    result.values.push_back(values[index]);
    result.votes.push_back(votes[index]);
  }
  return result;
}

template <class Number>
Number log_mean_score(const RowOf<Number>& votes, const RowOf<Number>& log_scores) {
  return log_sum_exp(voted(votes, log_scores)) - log(sum(votes));
}

template <class Number>
ClusterMeanOf<Number>::ClusterMeanOf(const EntriesOf<Number>& members, const RowOf<Number>& log_scores)
    : weights(softmax(voted(members.votes, log_scores))),
      votes(sum(members.votes)),
      log_weight(log_sum_exp(voted(members.votes, log_scores))),
      target(log_mean_score(members.votes, log_scores)),
      key(weighted_sum(weights, members.keys)),
      value(weighted_sum(weights, members.values)) {
  RowOf<Number> apart;
  for (size_t j = 0; j < log_scores.size(); ++j)
    apart.push_back(j == 0 ? Number(0) : log_scores[j] - log_scores[0]);
  const Number middle = dot(weights, apart);
  mean_score = log_scores[0] + middle;
  for (Number& difference : apart) difference = difference - middle;
  divergence = oracle::divergence(members.votes, log_scores, weights, apart);
}

template <class Number>
JointMeanOf<Number>::JointMeanOf(const std::vector<ClusterMeanOf<Number>>& heads,
                                 const RowsOf<Number>& queries, const RowOf<Number>& log_denominators)
    : value(heads.front().value), votes(heads.front().votes), key(heads.front().key) {
  const bool alone = heads.size() == 1;
  if (!alone) {
    RowsOf<Number> keys, values;
    RowOf<Number> log_shares;
    for (size_t h = 0; h < heads.size(); ++h) {
      keys.push_back(heads[h].key);
      values.push_back(heads[h].value);
      log_shares.push_back(Number(2) * (heads[h].log_weight - log_denominators[h]));
    }
    value = weighted_sum(softmax(log_shares), values);
    key = mean(keys);
  }
  for (size_t h = 0; h < heads.size(); ++h) {
    RowOf<Number> apart;
    for (size_t c = 0; c < key.size(); ++c) apart.push_back(alone ? Number(0) : heads[h].key[c] - key[c]);
    missing.push_back(dot(queries[h], apart) - heads[h].divergence);
  }
}

template <class Number>
RowOf<Number> similarity_weights(const RowsOf<Number>& keys) {
  const RowOf<Number> target = unit_sized(keys.front());
  RowOf<Number> cosines{Number(1)};
  for (size_t j = 1; j < keys.size(); ++j) {
    const RowOf<Number> key = unit_sized(keys[j]);
    cosines.push_back(is_zero(key) || is_zero(target)
                          ? Number(0)
                          : dot(key, target) / (sqrt(dot(key, key)) * sqrt(dot(target, target))));
  }
  return normalised(cosines);
}

template <class Number>
RowOf<Number> gaussian_weights(const RowsOf<Number>& keys) {
  RowOf<Number> differences;  // of all keys, scaled by a common factor
  for (const RowOf<Number>& key : keys) {
    for (size_t c = 0; c < key.size(); ++c)
      differences.push_back(&key == &keys.front() ? Number(0) : key[c] - keys.front()[c]);
  }
  differences = unit_sized(differences);
  RowOf<Number> distances;
  for (auto first = differences.begin(); first != differences.end();) {
    const RowOf<Number> difference(first, first + std::ssize(keys.front()));
    distances.push_back(dot(difference, difference));
    first += std::ssize(keys.front());
  }
  const Number total = sum(distances);
  if (value_of(total) == 0) return normalised(RowOf<Number>(keys.size(), Number(0)));
  const Number twice_variance = Number(2) * (total / Number(static_cast<double>(keys.size() - 1)));
  for (Number& distance : distances) distance = -(distance / twice_variance);
  return normalised(distances);
}

template struct EntriesOf<Real>;
template struct EntriesOf<Bounded>;
template Bounded log_mean_score(const Row&, const Row&);
template struct ClusterMeanOf<Real>;
template struct ClusterMeanOf<Bounded>;
template struct JointMeanOf<Real>;
template struct JointMeanOf<Bounded>;
template Reals similarity_weights(const RowsOf<Real>&);
template Row similarity_weights(const Rows&);
template Reals gaussian_weights(const RowsOf<Real>&);
template Row gaussian_weights(const Rows&);

}  // namespace kvbound::oracle

namespace kvbound::exact {
namespace {

// Hestenes' rotation, which makes two rows orthogonal, of these and of the combinations that they are.
//
// returns  whether they were not yet orthogonal
bool rotated(Vectors& rows, Vectors& combinations, size_t p, size_t q) {
  const Real a = squared(rows[p]), b = squared(rows[q]), c = oracle::dot(rows[p], rows[q]);
  // A row that is mere rounding of the other one needs no rotation.
  if (c * c <= Real("1e-94") * a * b || std::min(a, b) <= Real("1e-90") * std::max(a, b)) return false;
  const Real zeta = (b - a) / (2 * c);
  const Real tangent = (zeta < 0 ? -1 : 1) / (abs(zeta) + sqrt(1 + zeta * zeta));
  const Real cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
  for (Vectors* matrix : {&rows, &combinations}) {
    const Reals first = (*matrix)[p], second = (*matrix)[q];
    (*matrix)[p] = combination(cosine, first, -sine, second);
    (*matrix)[q] = combination(sine, first, cosine, second);
  }
  return true;
}

bool any_rotated(Vectors& rows, Vectors& combinations) {
  bool any = false;
  for (size_t p = 0; p < rows.size(); ++p) {
    for (size_t q = p + 1; q < rows.size(); ++q) any = rotated(rows, combinations, p, q) || any;
  }
  return any;
}

// Two scores with distance x, of which the higher one has this share of the votes.
template <class Number>
struct TwoScores {
  TwoScores(const Number& share, const Number& x) {
    using std::exp, std::log;
    const Number raised = share * exp(x), whole = 1 - share + raised, upper = raised / whole;
    const Number log_whole = log(whole);
    per_range = upper - log_whole / x;
    slope = x * (x * upper * (1 - upper) - upper) + log_whole;
    bend = x * upper * (1 - upper) * (1 - x * (2 * upper - 1));
  }

  Number per_range;  // KL / x
  Number slope;      // x^2 times its derivative: positive up to the maximum, then negative
  Number bend;       // the derivative of `slope`
};

// The distance for which KL / x is largest, as far as double precision decides.
double best_distance(double share) {
  double below = 1, above = 2;
  while (TwoScores(share, above).slope > 0) {
    below = above;
    above *= 2;
  }
  constexpr int kHalvings = 50;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (below + above) / 2;
    (TwoScores(share, middle).slope > 0 ? below : above) = middle;
  }
  return below;
}

}  // namespace

Real divergence_per_range(const Real& smallest_share) {
  const Real near = best_distance(static_cast<double>(smallest_share));
  const TwoScores found(smallest_share, near);
  // One step of Newton's method gives 50 digits, as the maximum is flat.
  return TwoScores(smallest_share, Real(near - found.slope / found.bend)).per_range;
}

Reals logits(const Reals& query, const Vectors& keys) {
  Reals result;
  for (const Reals& key : keys) result.push_back(oracle::dot(query, key));
  return result;
}

Query attention(const Reals& logits, const Reals& votes, const Vectors& values) {
  return {oracle::voted(votes, logits), values};
}

MergedEntry min_norm_merge(const ClusterMean& mean, const Reals& query) {
  return {combination(1, mean.key, -mean.divergence / squared(query), query), mean.value, mean.votes};
}

MergedEntry zip_merge(const ClusterMean& mean) {
  if (mean.divergence == 0) return convex_merge(mean);
  return {scaled(mean.target / mean.mean_score, mean.key), mean.value, mean.votes};
}

MergedEntry convex_merge(const ClusterMean& mean) { return {mean.key, mean.value, mean.votes}; }

Entries with_merged(const Entries& cache, const std::vector<std::vector<int64_t>>& clusters,
                    const std::vector<MergedEntry>& merged) {
  std::vector<bool> gone(cache.count(), false);
  for (const auto& cluster : clusters) {
    for (const int64_t member : cluster) {
      assert(!gone[member]);
      gone[member] = true;
    }
  }
  std::vector<int64_t> staying;
  for (size_t i = 0; i < gone.size(); ++i) {
    if (!gone[i]) staying.push_back(i);
  }
  Entries result = cache.at(staying);
  for (const MergedEntry& entry : merged) {
    result.keys.push_back(entry.key);
    result.values.push_back(entry.value);
    result.votes.push_back(entry.votes);
  }
  return result;
}

Query merged_attention(const Reals& logits, const Entries& cache, const std::vector<int64_t>& cluster,
                       const Real& merged_logit, const MergedEntry& merged) {
  Reals seen, votes;
  Vectors values;
  for (size_t j = 0; j < cache.count(); ++j) {
    if (std::ranges::find(cluster, j) != cluster.end()) continue;
    seen.push_back(logits[j]);
    votes.push_back(cache.votes[j]);
    values.push_back(cache.values[j]);
  }
  seen.push_back(merged_logit);
  votes.push_back(merged.votes);
  values.push_back(merged.value);
  return attention(seen, votes, values);
}

SingularValues::SingularValues(const Vectors& matrix) {
  Vectors rows = matrix, combinations(rows.size(), Reals(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) combinations[i][i] = 1;
  while (any_rotated(rows, combinations)) {
  }
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return squared(rows[a]) > squared(rows[b]); });
  for (const size_t i : order) {
    sigmas.push_back(sqrt(squared(rows[i])));
    left.push_back(combinations[i]);
    right.push_back(scaled(sigmas.back() > 0 ? Real(1 / sigmas.back()) : Real(0), rows[i]));
  }
}

Reals SingularValues::solution(const Reals& targets, size_t rank) const {
  Reals result(right.front().size());
  for (size_t i = 0; i < rank; ++i)
    result = combination(1, result, oracle::dot(left[i], targets) / sigmas[i], right[i]);
  return result;
}

}  // namespace kvbound::exact
