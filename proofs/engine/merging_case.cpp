#include "merging_case.hpp"

#include <algorithm>

namespace kvbound::proofs {

using exact::Real;
using exact::Reals;

std::vector<Cluster> clusters_of(const Instance& instance) {
  std::vector<Cluster> clusters;
  for (const int64_t position : instance.kept) clusters.push_back({position});
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    const auto after = std::ranges::upper_bound(instance.kept, j);
    const int64_t target = std::max<std::ptrdiff_t>(after - instance.kept.begin() - 1, 0);
    if (clusters[target].front() != j) clusters[target].push_back(j);
  }
  std::erase_if(clusters, [](const Cluster& cluster) { return cluster.size() < 2; });
  return clusters;
}

Matrix keys_of(const Instance& instance) {
  const int64_t rows = instance.logits.rows(), columns = instance.values.cols();
  Matrix keys(instance.tokens(), rows + columns);
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    for (int64_t r = 0; r < rows; ++r) {
      Real rest = instance.logits(r, j) / Real(kScale);
      for (int64_t c = 0; c < r; ++c) rest -= Real(instance.query_vectors(r, c)) * keys(j, c);
      keys(j, r) = static_cast<double>(Real(rest / instance.query_vectors(r, r)));
    }
    for (int64_t c = 0; c < columns; ++c) keys(j, rows + c) = instance.values(j, c);
  }
  return keys;
}

MergingCase::MergingCase(const Instance& instance)
    : keys(keys_of(instance)), clusters(clusters_of(instance)) {
  const int64_t rows = instance.logits.rows();
  queries = Matrix(rows, keys.cols());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < rows; ++c) queries(r, c) = instance.query_vectors(r, c);
  }
  cache = {
      exact::vectors(keys), exact::vectors(instance.values), {instance.votes.begin(), instance.votes.end()}};
  for (int64_t h = 0; h < instance.query_heads; ++h) {
    MergingHead& head = heads.emplace_back();
    for (int64_t i = 0; i < instance.queries(); ++i) {
      const VectorView query = queries.row(h * instance.queries() + i);
      head.queries.push_back(exact::scaled(kScale, Reals(query.begin(), query.end())));
    }
    head.predicted = exact::logits(head.queries.front(), cache.keys);
    head.projection = exact::vectors(instance.projection_of(h));
    head.values = {cache.values, exact::projected_values(instance.values, instance.projection_of(h))};
  }
}

Reals MergingHead::in(Space space, const Reals& value) const {
  if (space == Space::head) return value;
  Reals result(projection.front().size());
  for (size_t c = 0; c < value.size(); ++c) result = exact::combination(1, result, value[c], projection[c]);
  return result;
}

Reals MergingCase::predicted(size_t head, const Cluster& cluster) const {
  Reals result;
  for (const int64_t member : cluster) result.push_back(heads[head].predicted[member]);
  return result;
}

Real MergingCase::log_denominator(size_t head) const {
  return oracle::log_sum_exp(oracle::voted(cache.votes, heads[head].predicted));
}

Reals MergingCase::log_denominators() const {
  Reals result;
  for (size_t h = 0; h < heads.size(); ++h) result.push_back(log_denominator(h));
  return result;
}

exact::Vectors MergingCase::first_queries() const {
  exact::Vectors result;
  for (const MergingHead& head : heads) result.push_back(head.queries.front());
  return result;
}

Real MergingCase::logit_terms(size_t head) const {
  Real largest = 1;
  for (const Reals& query : heads[head].queries) {
    for (const Reals& key : cache.keys) largest = std::max<Real>(largest, absolute_terms(query, key));
  }
  return largest;
}

Real MergingCase::value_terms(size_t head, Space space) const {
  Real largest = 0;
  for (const Reals& value : heads[head].values[static_cast<size_t>(space)])
    largest = std::max<Real>(largest, exact::norm(value, exact::Norm::l1));
  return 16 * static_cast<int64_t>(cache.count()) * largest;
}

Real MergingCase::key_size() const {
  Real largest = 0;
  for (const Reals& key : cache.keys) largest = std::max<Real>(largest, exact::norm(key, exact::Norm::l2));
  return largest;
}

Real absolute_terms(const Reals& a, const Reals& b) {
  Real sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += abs(a[c] * b[c]);
  return sum;
}

Real score_terms(const Reals& log_scores) {
  Real largest = 1;
  for (const Real& score : log_scores) largest = std::max<Real>(largest, abs(score));
  return 64 * std::ssize(log_scores) * largest;
}

}  // namespace kvbound::proofs
