#include "merge_oracle.hpp"

#include <algorithm>
#include <limits>

namespace kvbound::oracle {
namespace {

using reference::MergeQueries;

Row column(const Rows& rows, size_t index) {
  Row result;
  for (const Row& row : rows) result.push_back(row[index]);
  return result;
}

// sum_j weights_j rows_j
Row weighted_mean(const Row& weights, const Rows& rows) {
  Row result;
  for (size_t c = 0; c < rows.front().size(); ++c) result.push_back(dot(weights, column(rows, c)));
  return result;
}

Row mean(const Rows& rows) {
  Row result;
  for (size_t c = 0; c < rows.front().size(); ++c) {
    result.push_back(sum(column(rows, c)) / Bounded(static_cast<double>(rows.size())));
  }
  return result;
}

// e^x - 1, accurate to 1 ulp in the C library.
Bounded expm1(const Bounded& x) {
  if (x.bound > 1) throw std::domain_error("an exponential of what is hardly known");
  const Real power = boost::multiprecision::exp(x.value);
  return rounded(Real(power - 1), Real(power * x.bound * (1 + x.bound)), 2);
}

struct Softmax {
  Row weights;
  Bounded log_sum;
};

// exp(z_j) / sum exp(z), evaluated as m + ln sum exp(z - m) and its quotients, with m the largest logit. With e_j the
// relative error of exponential j, a quotient's is (e_j - sum w e) / (1 + sum w e): where one entry has nearly all
// weight, its own error matters little. m is subtracted from all logits, so that its own error cancels.
Softmax softmax(const Row& logits) {
  const Real largest = std::ranges::max_element(logits, {}, &Bounded::value)->value;
  Real furthest = 0;
  for (const Bounded& logit : logits) furthest = std::max(furthest, logit.bound);
  Row exponentials;
  Real total = 0;
  for (const Bounded& logit : logits) {
    const Real distance = abs(logit.value - largest) + logit.bound + furthest;
    exponentials.push_back(exponential(boost::multiprecision::exp(logit.value - largest),
                                       logit.bound + unit_roundoff() * distance));
    total += exponentials.back().value;
  }
  Softmax result;
  result.log_sum = rounded(largest + boost::multiprecision::log(total), log(sum(exponentials)).bound);
  const Real sums = gamma(std::ssize(logits));  // for the sum and the division
  for (const Bounded& exponential : exponentials) {
    Real others = 0, others_bound = 0;
    for (const Bounded& other : exponentials) {
      if (&other == &exponential) continue;
      others += other.value;
      others_bound += other.bound;
    }
    const Real weight = exponential.value / total;
    const Real carried = (others * exponential.bound + exponential.value * others_bound) / (total * total) /
                         (1 - (others_bound + exponential.bound) / total);
    result.weights.push_back(rounded(weight, carried + sums * (weight + carried), 1));
  }
  return result;
}

// ln p + ln s
Row voted(const Row& votes, const Row& log_scores) {
  Row result;
  for (size_t j = 0; j < votes.size(); ++j) result.push_back(log(votes[j]) + log_scores[j]);
  return result;
}

// sum (w/W) ln((w/W) / (p/P)). For scores less than 10^-15 apart, whose shares differ by too little for 50 digits: half
// the variance by shares p/P, which differs by less than the third power of the distance.
Bounded divergence(const Row& votes, const Row& log_scores, const Row& weights) {
  Real all_votes = 0, furthest = 0;
  for (const Bounded& vote : votes) all_votes += vote.value;
  std::vector<Real> apart;
  for (const Bounded& score : log_scores) {
    apart.push_back(score.value - log_scores.front().value);
    furthest = std::max(furthest, Real(abs(apart.back())));
  }
  Real direct = 0, mean = 0, variance = 0;
  for (size_t j = 0; j < votes.size(); ++j) {
    const Real share = votes[j].value / all_votes;
    direct += weights[j].value * boost::multiprecision::log(weights[j].value / share);
    mean += share * apart[j];
  }
  if (furthest > Real("1e-15")) return {direct, 0};
  for (size_t j = 0; j < votes.size(); ++j) {
    variance += votes[j].value / all_votes * (apart[j] - mean) * (apart[j] - mean);
  }
  return {Real(variance / 2), Real(furthest * furthest * furthest)};
}

// -ln sum_j (p_j / P) exp(x_j), x the scores minus their mean: by expm1 if the sum is above 1/2, else directly.
Real divergence_bound(const Row& votes, const Row& centred) {
  const Bounded all_votes = sum(votes);
  Row below, whole;
  for (size_t j = 0; j < votes.size(); ++j) {
    const Bounded share = votes[j] / all_votes;
    below.push_back(share * expm1(centred[j]));
    whole.push_back(share * exp(centred[j]));
  }
  const Bounded less = sum(below), plain = sum(whole);
  Real bound = 0;
  if (less.value + less.bound > -0.5) {
    const Real one = less.value + 1;
    bound = rounded(boost::multiprecision::log(one), less.bound / (one - less.bound), 2).bound;
  }
  if (less.value - less.bound <= -0.5) bound = std::max(bound, log(plain).bound);
  return bound;
}

// A matrix's singular values in descending order, by rotating its rows until they are orthogonal.
struct SingularValues {
  explicit SingularValues(const Rows& matrix) {
    const size_t count = matrix.size();
    std::vector<std::vector<Real>> rows, turns(count, std::vector<Real>(count));
    for (size_t i = 0; i < count; ++i) {
      turns[i][i] = 1;
      rows.emplace_back();
      for (const Bounded& number : matrix[i]) rows[i].push_back(number.value);
    }
    while (!turn_all(rows, turns)) {
    }
    for (size_t i = 0; i < count; ++i) order.push_back(i);
    for (const auto& row : rows) sigmas.push_back(boost::multiprecision::sqrt(inner(row, row)));
    std::ranges::sort(order, [&](size_t a, size_t b) { return sigmas[a] > sigmas[b]; });
    right = std::move(rows);  // sigma_i v_i
    left = std::move(turns);  // u_i, by rows
  }

  const Real& sigma(size_t i) const { return sigmas[order[i]]; }

  // Adds (u_i . t / sigma_i) v_i.
  void add(size_t i, const std::vector<Real>& targets, std::vector<Real>& x) const {
    const size_t at = order[i];
    const Real length = inner(left[at], targets) / (sigmas[at] * sigmas[at]);
    for (size_t c = 0; c < x.size(); ++c) x[c] += length * right[at][c];
  }

  static Real inner(const std::vector<Real>& a, const std::vector<Real>& b) {
    Real result = 0;
    for (size_t c = 0; c < a.size(); ++c) result += a[c] * b[c];
    return result;
  }

  // Applies Hestenes' rotation to every pair of rows; returns whether all pairs were orthogonal.
  static bool turn_all(std::vector<std::vector<Real>>& rows, std::vector<std::vector<Real>>& turns) {
    bool done = true;
    for (size_t p = 0; p + 1 < rows.size(); ++p) {
      for (size_t q = p + 1; q < rows.size(); ++q) {
        const Real a = inner(rows[p], rows[p]), b = inner(rows[q], rows[q]), c = inner(rows[p], rows[q]);
        // A row that is mere rounding of the other one needs no rotation.
        if (c * c <= Real("1e-94") * a * b || std::min(a, b) <= Real("1e-90") * std::max(a, b)) continue;
        done = false;
        const Real zeta = (b - a) / (2 * c);
        const Real sign = zeta < 0 ? -1 : 1;
        const Real t = sign / (abs(zeta) + boost::multiprecision::sqrt(1 + zeta * zeta));
        const Real cosine = 1 / boost::multiprecision::sqrt(1 + t * t), sine = cosine * t;
        for (auto* matrix : {&rows, &turns}) {
          for (size_t i = 0; i < (*matrix)[p].size(); ++i) {
            const Real x = (*matrix)[p][i], y = (*matrix)[q][i];
            (*matrix)[p][i] = cosine * x - sine * y;
            (*matrix)[q][i] = sine * x + cosine * y;
          }
        }
      }
    }
    return done;
  }

  std::vector<size_t> order;
  std::vector<Real> sigmas;
  std::vector<std::vector<Real>> left, right;
};

// By how much the computed factors of a decomposition belong to another matrix, and are not orthogonal, relative to the
// matrix's Frobenius norm. A reflection of d numbers costs at most (4 d + 30) u of their length (a product of d terms,
// a multiple and a difference, with a vector whose length is a sum of d squares); there is one per row or column,
// whichever are fewer, for the matrix and again for the factor. A rotation of two numbers costs at most 12 u; a sweep
// rotates each pair from both sides and in both factors, and there are at most 16 sweeps. Off-diagonal elements that
// remain are at most 4 u of the largest and are ignored.
Real decomposition_error(int64_t unknowns, int64_t conditions) {
  const int64_t few = std::min(unknowns, conditions), many = std::max(unknowns, conditions);
  const int64_t reflections = 2 * few * (4 * many + 30);
  const int64_t rotations = 16 * 2 * 12 * few * (few - 1) / 2;
  return unit_roundoff() * (reflections + rotations + 4 * few);
}

Real length(const Row& row) {
  Real squares = 0;
  for (const Bounded& number : row) squares += number.value * number.value;
  return boost::multiprecision::sqrt(squares);
}
Real length_of_bounds(const Row& row) {
  Real squares = 0;
  for (const Bounded& number : row) squares += number.bound * number.bound;
  return boost::multiprecision::sqrt(squares);
}

Row scaled_query(double scale, const Row& query) {
  Row result;
  for (const Bounded& number : query) result.push_back(Bounded(scale) * number);
  return result;
}

// The key's correction; 0 if a double cannot represent it.
Solution correction(const Rows& queries, double rank, const Row& missing) {
  Solution result = solution(queries, rank, missing);
  const bool is_finite = std::ranges::all_of(result.x, [](const Bounded& number) {
    return abs(number.value) <= std::numeric_limits<double>::max();
  });
  if (!is_finite) result.x.assign(result.x.size(), Bounded());
  return result;
}

// Whether a double with this error is certain to be on the same side of the limit.
bool is_certain(const Bounded& number, const Real& limit) { return abs(number.value - limit) > number.bound; }

}  // namespace

ClusterMean cluster_mean(const Row& votes, const Row& log_scores, MatrixView keys, MatrixView values) {
  ClusterMean result;
  const Softmax weighted = softmax(voted(votes, log_scores));
  result.weights = weighted.weights;
  result.log_weight = weighted.log_sum;
  Row apart, centred;
  for (const Bounded& score : log_scores) apart.push_back(score - log_scores.front());
  const Bounded middle = dot(result.weights, apart);
  for (const Bounded& difference : apart) centred.push_back(difference - middle);
  result.mean_log_score = log_scores.front() + middle;
  result.divergence = divergence(votes, log_scores, result.weights);
  result.divergence.bound += divergence_bound(votes, centred);
  result.key = weighted_mean(result.weights, exactly(keys));
  result.value = weighted_mean(result.weights, exactly(values));
  return result;
}

Bounded log_mean_score(const Row& votes, const Row& log_scores) {
  return softmax(voted(votes, log_scores)).log_sum - log(sum(votes));
}

// With A the rows, B = sum sigma_i u_i v_i^T without the dropped terms, B~ the same from the computed factors, e a
// bound on |A~ - A|: |B~ - B| <= e if none is dropped, else e (1 + sigma_1 / (sigma_r - sigma_{r+1} - e)), since
// subspaces rotate (Wedin 1972); |B~^+ - B^+| <= (1 + sqrt 5)/2 |B~ - B| |B^+| |B~^+| (Wedin 1973), |B~^+| <= 1 /
// (sigma_r - |B~ - B|).
Solution solution(const Rows& rows, double share, const Row& targets) {
  Solution result;
  result.x.resize(rows.front().size());
  const SingularValues values(rows);
  const Real& largest = values.sigma(0);
  if (largest == 0) return result;
  Real error = 0, squares = 0;
  for (const Row& row : rows) {
    const Real bound = length_of_bounds(row), size = length(row);
    error += bound;
    squares += size * size;
  }
  const auto count = std::ssize(rows);
  const Real orthogonality = decomposition_error(std::ssize(result.x), count);
  error += orthogonality * boost::multiprecision::sqrt(squares);
  const Real least = std::max(Real(share), Real(1e-14)) * largest;  // smaller ones count as 0
  std::vector<Real> exact_targets, x(result.x.size());
  for (const Bounded& target : targets) exact_targets.push_back(target.value);
  size_t rank = 0;
  for (; rank < rows.size() && values.sigma(rank) >= least; ++rank) values.add(rank, exact_targets, x);
  const size_t most = std::min(rows.size(), x.size());
  for (size_t i = 1; i < most; ++i) {  // the largest is never dropped
    if (!(abs(values.sigma(i) - least) > 2 * error)) result.decided = false;
  }
  const Real smallest = values.sigma(rank - 1);
  const bool drops = rank < most;
  const Real gap = drops ? Real(smallest - values.sigma(rank) - error) : smallest;
  const Real moved = drops ? Real(error * (1 + largest / gap)) : error;
  if (!(gap > 0) || !(smallest > 2 * moved)) {
    result.decided = false;
    return result;
  }
  const Real inverse = 1 / (smallest - moved);
  const Real size = length(targets);
  const Real golden = (1 + boost::multiprecision::sqrt(Real(5))) / 2;
  const Real bound =
      inverse * (length_of_bounds(targets) + size * golden * moved / smallest +
                 (size + length_of_bounds(targets)) * (2 * orthogonality + (count + 4) * unit_roundoff()));
  for (size_t c = 0; c < x.size(); ++c) result.x[c] = rounded(x[c], bound);
  result.rank = static_cast<int64_t>(rank);
  return result;
}

MergedCluster merge_cluster(const KeyRule& rule, MatrixView queries, double scale,
                            const reference::ClusterMembers& members, const Rows& log_scores,
                            const Row& log_denominators) {
  const bool joint = rule.gqa == MergeGqa::joint && queries.rows > 1;
  const Row votes = exactly(VectorView(members.votes));
  const Rows merging = joint || queries.rows == 1 ? log_scores : Rows{mean(log_scores)};
  Rows asking;
  for (const Row& query : joint ? exactly(queries) : Rows{mean(exactly(queries))}) {
    asking.push_back(scaled_query(scale, query));
  }
  std::vector<ClusterMean> means;
  Rows keys, values;
  Row shares;
  for (size_t h = 0; h < merging.size(); ++h) {
    means.push_back(cluster_mean(votes, merging[h], members.keys, members.values));
    keys.push_back(means.back().key);
    values.push_back(means.back().value);
    if (joint) shares.push_back(Bounded(2) * (means.back().log_weight - log_denominators[h]));
  }
  MergedCluster result;
  result.votes = sum(votes);
  for (const Row& scores : log_scores) result.log_scores.push_back(log_mean_score(votes, scores));
  result.value = joint ? weighted_mean(softmax(shares).weights, values) : values.front();
  result.key = joint ? mean(keys) : keys.front();
  if (rule.key == MergedKey::convex) return result;

  const ClusterMean& first = means.front();
  if (rule.key == MergedKey::zip && first.divergence.value != 0) {
    Real size = 0;
    for (const Bounded& score : merging.front()) size = std::max(size, Real(abs(score.value)));
    const Real limit = Real(1e-12) * size;
    const Bounded& m = first.mean_log_score;
    result.singular = abs(m.value) <= limit;
    // A divergence that may be computed as 0 gives a scale of 1, which is right unless m vanishes, too.
    result.decided =
        is_certain(abs(m), limit) && (!result.singular || first.divergence.value > first.divergence.bound);
    if (!result.singular && result.decided) {
      result.zip_scale = Bounded(1) - first.divergence / m;
      for (Bounded& number : result.key) number = number * result.zip_scale;
    }
    if (!result.singular || !result.decided) return result;
  }
  if (rule.key == MergedKey::zip && !result.singular) return result;
  Row missing;
  for (size_t h = 0; h < means.size(); ++h) {
    Row apart;
    for (size_t c = 0; c < result.key.size(); ++c) apart.push_back(means[h].key[c] - result.key[c]);
    if (!joint) apart.assign(apart.size(), Bounded());  // the difference of a number and itself
    missing.push_back(dot(asking[h], apart) - means[h].divergence);
  }
  const Solution shift = correction(asking, rule.rank, missing);
  result.decided = result.decided && shift.decided;
  for (size_t c = 0; c < result.key.size(); ++c) result.key[c] = result.key[c] + shift.x[c];
  return result;
}

Row attention(VectorView query, const Rows& keys, const Rows& values, const Row& votes, double scale) {
  Row logits;
  const Row exact = exactly(query);
  for (const Row& key : keys) logits.push_back(Bounded(scale) * dot(exact, key));
  return weighted_mean(softmax(voted(votes, logits)).weights, values);
}

}  // namespace kvbound::oracle
