#include "merging.hpp"

#include <algorithm>
#include <numeric>

namespace kvbound::exact {
namespace {

Reals with_votes(const Reals& logits, const Reals& votes) {
  Reals result;
  for (size_t j = 0; j < logits.size(); ++j) result.push_back(logits[j] + log(votes[j]));
  return result;
}

// Jacobi rotation: rotates rows and columns p and q of a symmetric
// matrix so that element (p, q) becomes 0, and the vectors with them.
void rotate(Vectors& symmetric, Vectors& vectors, size_t p, size_t q) {
  const Real tangent_of_twice = 2 * symmetric[p][q] / (symmetric[q][q] - symmetric[p][p]);
  const Real angle =
      symmetric[q][q] == symmetric[p][p] ? Real(atan(Real(1))) : Real(atan(tangent_of_twice) / 2);
  const Real cosine = cos(angle), sine = sin(angle);
  const auto turn = [&](Reals& first, Reals& second) {
    const Reals before = first;
    first = combination(cosine, before, -sine, second);
    second = combination(sine, before, cosine, second);
  };
  turn(symmetric[p], symmetric[q]);
  for (Reals& row : symmetric) {
    const Real before = row[p];
    row[p] = cosine * before - sine * row[q];
    row[q] = sine * before + cosine * row[q];
  }
  turn(vectors[p], vectors[q]);
}

// Jacobi's method: returns the eigenvectors; the diagonal of `symmetric` becomes the eigenvalues.
Vectors diagonalised(Vectors& symmetric) {
  // Relative to the product of two diagonal elements: the square of 50-digit precision.
  const Real nothing("1e-98");
  Vectors vectors(symmetric.size(), Reals(symmetric.size()));
  for (size_t i = 0; i < vectors.size(); ++i) vectors[i][i] = 1;
  for (bool turned = true; turned;) {
    turned = false;
    for (size_t p = 0; p < symmetric.size(); ++p) {
      for (size_t q = p + 1; q < symmetric.size(); ++q) {
        const Real shared = symmetric[p][q] * symmetric[p][q];
        if (!(shared > nothing * abs(symmetric[p][p] * symmetric[q][q]))) continue;
        rotate(symmetric, vectors, p, q);
        turned = true;
      }
    }
  }
  return vectors;
}

}  // namespace

Entries Entries::at(Indices indices) const {
  Entries result;
  for (const int64_t i : indices) {
    const int64_t index = i;
    result.keys.push_back(keys[index]);
    result.values.push_back(values[index]);
    result.votes.push_back(votes[index]);
  }
  return result;
}

Reals logits(const Reals& query, const Vectors& keys) {
  Reals result;
  for (const Reals& key : keys) result.push_back(inner_product(query, key));
  return result;
}

Query attention(const Reals& logits, const Reals& votes, const Vectors& values) {
  return {with_votes(logits, votes), values};
}

ClusterMean::ClusterMean(const Entries& members, const Reals& log_scores)
    : weights(softmax(with_votes(log_scores, members.votes))), votes(total(members.votes)) {
  Real weight = 0;
  for (size_t j = 0; j < members.count(); ++j) weight += members.votes[j] * exp(log_scores[j]);
  log_weight = log(weight);
  mean_score = inner_product(weights, log_scores);
  target = log(weight / votes);
  const bool agreed =
      std::ranges::all_of(log_scores, [&](const Real& score) { return score == log_scores.front(); });
  for (size_t j = 0; j < members.count() && !agreed; ++j)
    divergence += weights[j] * log(weights[j] * votes / members.votes[j]);
  key = weighted_sum(weights, members.keys);
  value = weighted_sum(weights, members.values);
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
    for (const int64_t member : cluster) gone[member] = true;
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

Reals similarity_weights(const Vectors& keys) {
  Reals cosines{1};
  for (size_t j = 1; j < keys.size(); ++j) {
    const Real size = sqrt(squared(keys[j]) * squared(keys.front()));
    cosines.push_back(size > 0 ? Real(inner_product(keys[j], keys.front()) / size) : Real(0));
  }
  return softmax(cosines);
}

Reals gaussian_weights(const Vectors& keys) {
  Reals exponents;
  Real sum = 0;
  for (const Reals& key : keys) {
    exponents.push_back(-squared(difference(key, keys.front())) / 2);
    sum += squared(difference(key, keys.front()));
  }
  for (Real& exponent : exponents)
    exponent *= sum > 0 ? Real(static_cast<int64_t>(keys.size() - 1) / sum) : Real(0);
  return softmax(exponents);
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

SingularValues::SingularValues(const Vectors& rows) {
  Vectors products;
  for (const Reals& row : rows) products.push_back(logits(row, rows));
  const Vectors vectors = diagonalised(products);
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return products[a][a] > products[b][b]; });
  for (const size_t i : order) {
    const Real sigma = products[i][i] > 0 ? Real(sqrt(products[i][i])) : Real(0);
    sigmas.push_back(sigma);
    left.push_back(vectors[i]);
    right.push_back(scaled(sigma > 0 ? Real(1 / sigma) : Real(0), weighted_sum(vectors[i], rows)));
  }
}

Reals SingularValues::solution(const Reals& targets, size_t rank) const {
  Reals result(right.front().size());
  for (size_t i = 0; i < rank; ++i)
    result = combination(1, result, inner_product(left[i], targets) / sigmas[i], right[i]);
  return result;
}

size_t SingularValues::rank(const Real& share) const {
  size_t count = 0;
  while (count < sigmas.size() && sigmas[count] > 0 && sigmas[count] >= share * sigmas.front()) ++count;
  return count;
}

JointMean::JointMean(const std::vector<ClusterMean>& heads, const Vectors& queries,
                     const Reals& log_denominators)
    : votes(heads.front().votes), singular(queries) {
  Vectors keys, values;
  Reals log_shares;
  for (size_t h = 0; h < heads.size(); ++h) {
    keys.push_back(heads[h].key);
    values.push_back(heads[h].value);
    log_shares.push_back(2 * (heads[h].log_weight - log_denominators[h]));
  }
  shares = softmax(log_shares);
  value = weighted_sum(shares, values);
  key = weighted_sum(Reals(heads.size(), Real(1) / std::ssize(heads)), keys);
  for (size_t h = 0; h < heads.size(); ++h) {
    missing.push_back(inner_product(queries[h], heads[h].key) - heads[h].divergence -
                      inner_product(queries[h], key));
  }
}

}  // namespace kvbound::exact
