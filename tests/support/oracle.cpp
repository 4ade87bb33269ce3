#include "support/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <numeric>
#include <stdexcept>

namespace kvbound::oracle {
namespace {

const Real kUnitRoundoff = ldexp(Real(1), -53);
const Real kEta = ldexp(Real(1), -1074);

// One rounding of a result whose operands' errors already moved it by at most `carried`.
Bounded rounded(const Real& value, const Real& carried, int roundings = 1) {
  return {value, carried + roundings * (kUnitRoundoff * (abs(value) + carried) + kEta)};
}

Real carried_by_product(const Bounded& a, const Bounded& b) {
  return abs(a.value) * b.bound + abs(b.value) * a.bound + a.bound * b.bound;
}

// The exponential of an argument that is off by at most d <= 1: |exp(x + d) - exp(x)| <= exp(x) (d + d^2).
Bounded exponential(const Real& value, const Real& argument_bound) {
  if (argument_bound > 1) throw std::domain_error("an exponential of what is hardly known");
  return rounded(value, value * argument_bound * (1 + argument_bound), 2);
}

Real largest(const Row& row) { return std::ranges::max_element(row, {}, &Bounded::value)->value; }

// exp(z), plainly.
std::vector<Real> exponentials(const Row& logits) {
  std::vector<Real> result;
  for (const Bounded& logit : logits) result.push_back(exp(logit.value));
  return result;
}

Real total(const std::vector<Real>& terms) { return std::accumulate(terms.begin(), terms.end(), Real(0)); }

// exp(z_j - m) with the error of evaluating it in double. m is the largest computed logit: whichever double
// it is, it is subtracted from all alike, so only the subtraction's rounding counts, of a difference that m's
// own error may have widened.
Row shifted_exponentials(const Row& logits, const std::vector<Real>& exponentials) {
  const Real m = largest(logits), largest_exponential = *std::ranges::max_element(exponentials);
  Real m_error = 0;
  for (const Bounded& logit : logits) m_error = std::max(m_error, logit.bound);
  Row result;
  for (size_t j = 0; j < logits.size(); ++j) {
    const Real rounding = kUnitRoundoff * (abs(logits[j].value - m) + logits[j].bound + m_error);
    result.push_back(exponential(exponentials[j] / largest_exponential, logits[j].bound + rounding));
  }
  return result;
}

Row column(MatrixView matrix, int64_t index) {
  Row result;
  for (int64_t i = 0; i < matrix.rows; ++i) result.emplace_back(matrix(i, index));
  return result;
}

Bounded l1_norm(const Row& row) {
  Row terms;
  for (const Bounded& entry : row) terms.push_back(abs(entry));
  return sum(terms);
}

Row projected_sum(const Row& weights, MatrixView values, MatrixView output_projection) {
  Row head, hidden;
  for (int64_t c = 0; c < values.cols; ++c) head.push_back(dot(weights, column(values, c)));
  for (int64_t j = 0; j < output_projection.cols; ++j) {
    hidden.push_back(dot(head, column(output_projection, j)));
  }
  return hidden;
}

std::vector<bool> marks(size_t size, Indices indices) {
  std::vector<bool> marked(size, false);
  for (const int64_t i : indices) marked[static_cast<size_t>(i)] = true;
  return marked;
}

std::vector<int64_t> difference(Indices all, Indices some) {
  std::vector<int64_t> rest;
  std::ranges::set_difference(all, some, std::back_inserter(rest));
  return rest;
}

Bounded norm_mass(const Row& weights, const Row& norms, Indices entries) {
  return dot(at(weights, entries), at(norms, entries));
}

Bounded least(const Row& norms) {
  // |min fl(N) - min N| is at most the largest |fl(N) - N|.
  Bounded result = *std::ranges::min_element(norms, {}, &Bounded::value);
  for (const Bounded& norm : norms) result.bound = std::max(result.bound, norm.bound);
  return result;
}

}  // namespace

Real gamma(int64_t k) { return k * kUnitRoundoff / (1 - k * kUnitRoundoff); }
Real oracle_precision() { return Real("1e-45"); }

Row exactly(VectorView numbers) { return {numbers.begin(), numbers.end()}; }
Rows exactly(MatrixView numbers) {
  Rows rows;
  for (int64_t i = 0; i < numbers.rows; ++i) rows.push_back(exactly(VectorView(numbers.row(i))));
  return rows;
}

Bounded operator+(const Bounded& a, const Bounded& b) {
  return rounded(a.value + b.value, a.bound + b.bound);
}
Bounded operator-(const Bounded& a, const Bounded& b) {
  return rounded(a.value - b.value, a.bound + b.bound);
}
Bounded operator-(const Bounded& a) { return {-a.value, a.bound}; }
Bounded operator*(const Bounded& a, const Bounded& b) {
  return rounded(a.value * b.value, carried_by_product(a, b));
}
Bounded operator/(const Bounded& a, const Bounded& b) {
  const Real size = abs(b.value);
  if (!(size > b.bound)) throw std::domain_error("a quotient whose divisor may be 0");
  return rounded(a.value / b.value, (abs(a.value) * b.bound + size * a.bound) / (size * (size - b.bound)));
}
Bounded abs(const Bounded& a) { return {abs(a.value), a.bound}; }

Bounded exp(const Bounded& a) { return exponential(exp(a.value), a.bound); }
// |ln(x + d) - ln(x)| <= |d| / (x - |d|).
Bounded log(const Bounded& a) {
  if (!(a.value > a.bound)) throw std::domain_error("the logarithm of what may be 0");
  return rounded(log(a.value), a.bound / (a.value - a.bound), 2);
}
// |sqrt(x + d) - sqrt(x)| = |d| / (sqrt(x + d) + sqrt(x)) <= |d| / sqrt(x).
Bounded sqrt(const Bounded& a) {
  if (a.value == 0) return {Real(0), sqrt(a.bound)};
  const Real value = sqrt(a.value);
  return rounded(value, a.bound / value);
}

// n - 1 additions: gamma_{n-1} times the absolute values of the terms as they are computed.
Bounded sum(const Row& terms) {
  Bounded total;
  Real sizes = 0;
  for (const Bounded& term : terms) {
    total.value += term.value;
    total.bound += term.bound;
    sizes += abs(term.value) + term.bound;
  }
  if (!terms.empty()) total.bound += gamma(static_cast<int64_t>(terms.size()) - 1) * sizes;
  return total;
}

// n products and n - 1 additions: each term passes through at most n roundings; each product may underflow
// once.
Bounded dot(const Row& a, const Row& b) {
  if (a.size() != b.size()) throw std::invalid_argument("a dot product of different lengths");
  Bounded total;
  Real sizes = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const Real product = a[i].value * b[i].value;
    const Real carried = carried_by_product(a[i], b[i]);
    total.value += product;
    total.bound += carried + kEta;
    sizes += abs(product) + carried + kEta;
  }
  total.bound += gamma(static_cast<int64_t>(a.size())) * sizes;
  return total;
}

Row at(const Row& row, Indices indices) {
  Row result;
  for (const int64_t i : indices) result.push_back(row.at(static_cast<size_t>(i)));
  return result;
}

Row outside(const Row& row, Indices indices) {
  const std::vector<bool> marked = marks(row.size(), indices);
  Row result;
  for (size_t i = 0; i < row.size(); ++i) {
    if (!marked[i]) result.push_back(row[i]);
  }
  return result;
}

testing::AssertionResult within(double actual, const Bounded& expected) {
  // Infinity and NaN are no numbers of the oracle's; refused here, whatever the bound.
  if (std::isfinite(actual) && abs(Real(actual) - expected.value) <= expected.bound) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << std::setprecision(17) << actual << " is not within " << expected.bound
                                     << " of " << std::setprecision(25) << expected.value;
}

testing::AssertionResult all_within(VectorView actual, const Row& expected) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " numbers for " << expected.size();
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (auto result = within(actual[i], expected[i]); !result) return result << " at " << i;
  }
  if (std::ranges::none_of(expected, [](const Bounded& e) { return e.bound < abs(e.value); })) {
    return testing::AssertionFailure() << "a comparison with nothing but zeros proves nothing";
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult all_within(MatrixView actual, const Rows& expected) {
  if (actual.rows != static_cast<int64_t>(expected.size()) || expected.empty()) {
    return testing::AssertionFailure() << actual.rows << " rows for " << expected.size();
  }
  for (int64_t i = 0; i < actual.rows; ++i) {
    if (auto result = all_within(VectorView(actual.row(i)), expected[static_cast<size_t>(i)]); !result) {
      return result << " in row " << i;
    }
  }
  return testing::AssertionSuccess();
}

Rows logits(MatrixView queries, MatrixView keys, double scale) {
  Rows result;
  for (int64_t i = 0; i < queries.rows; ++i) {
    Row row;
    for (int64_t j = 0; j < keys.rows; ++j) {
      row.push_back(Bounded(scale) *
                    dot(exactly(VectorView(queries.row(i))), exactly(VectorView(keys.row(j)))));
    }
    result.push_back(row);
  }
  return result;
}

// As computed: m + ln sum exp(z - m). The value is the plain definition's.
Bounded log_sum_exp(const Row& logits) {
  const std::vector<Real> plain = exponentials(logits);
  return rounded(log(total(plain)), log(sum(shifted_exponentials(logits, plain))).bound);
}

Row softmax(const Row& logits) {
  if (logits.empty()) return {};
  const std::vector<Real> plain = exponentials(logits);
  const Real plain_total = total(plain);
  const Row shifted = shifted_exponentials(logits, plain);
  const Bounded denominator = sum(shifted);
  Row result;
  for (size_t j = 0; j < logits.size(); ++j) {
    result.emplace_back(plain[j] / plain_total, (shifted[j] / denominator).bound);
  }
  return result;
}

Rows causal_softmax(const Rows& logits, int64_t first_position) {
  Rows result;
  for (size_t i = 0; i < logits.size(); ++i) {
    const size_t visible = std::min(static_cast<size_t>(first_position) + i + 1, logits[i].size());
    Row row = softmax(Row(logits[i].begin(), logits[i].begin() + static_cast<std::ptrdiff_t>(visible)));
    row.resize(logits[i].size());
    result.push_back(row);
  }
  return result;
}

Attention attention(MatrixView queries, MatrixView keys, MatrixView values, double scale, VectorView votes) {
  Attention result;
  for (Row row : logits(queries, keys, scale)) {
    for (size_t j = 0; j < votes.size(); ++j) row[j] = row[j] + log(Bounded(votes[j]));
    const Row weights = softmax(row);
    Row output;
    for (int64_t c = 0; c < values.cols; ++c) output.push_back(dot(weights, column(values, c)));
    result.output.push_back(output);
    result.log_sum_exp.push_back(log_sum_exp(row));
  }
  return result;
}

Rows window_attention(const LayerView& layer, int64_t window) {
  Rows result;
  for (int64_t h = 0; h < layer.shape.query_heads; ++h) {
    const MatrixView queries = layer.queries.slice(h).middle_rows(layer.queries.rows - window, window);
    const MatrixView keys = layer.keys.slice(h / (layer.shape.query_heads / layer.shape.kv_heads));
    const Rows weights = causal_softmax(logits(queries, keys, layer.scale), keys.rows - window);
    Row mean;
    for (size_t j = 0; j < static_cast<size_t>(keys.rows); ++j) {
      Row paid;
      for (const Row& row : weights) paid.push_back(row[j]);
      mean.push_back(sum(paid) / Bounded(static_cast<double>(window)));
    }
    result.push_back(mean);
  }
  return result;
}

Rows max_pool(const Rows& scores, int64_t width) {
  Rows result;
  for (const Row& row : scores) {
    Row pooled;
    const auto size = static_cast<int64_t>(row.size());
    for (int64_t j = 0; j < size; ++j) {
      Bounded best = row[static_cast<size_t>(j)];
      for (int64_t other = 0; other < size; ++other) {
        if (2 * std::abs(other - j) > width - 1) continue;
        // |max fl(x) - max x| is at most the largest |fl(x) - x|.
        best.value = std::max(best.value, row[static_cast<size_t>(other)].value);
        best.bound = std::max(best.bound, row[static_cast<size_t>(other)].bound);
      }
      pooled.push_back(best);
    }
    result.push_back(pooled);
  }
  return result;
}

Rows group_mean(const Rows& scores, int64_t group_size) {
  const auto size = static_cast<size_t>(group_size);
  Rows result;
  for (size_t first = 0; first < scores.size(); first += size) {
    Row mean;
    for (size_t j = 0; j < scores[first].size(); ++j) {
      Row members;
      for (size_t h = first; h < first + size; ++h) members.push_back(scores[h][j]);
      mean.push_back(sum(members) / Bounded(static_cast<double>(group_size)));
    }
    result.push_back(mean);
  }
  return result;
}

Row projected_value_norms(MatrixView values, MatrixView output_projection, Norm norm) {
  Row result;
  for (int64_t i = 0; i < values.rows; ++i) {
    Row projected;
    for (int64_t j = 0; j < output_projection.cols; ++j) {
      projected.push_back(dot(exactly(VectorView(values.row(i))), column(output_projection, j)));
    }
    result.push_back(norm == Norm::l1 ? l1_norm(projected) : sqrt(dot(projected, projected)));
  }
  return result;
}

Row stage_two_scores(const Rows& head_scores, const Rows& norms, double epsilon, GqaProduct gqa) {
  const Bounded heads(static_cast<double>(head_scores.size()));
  Row result;
  for (size_t j = 0; j < head_scores.front().size(); ++j) {
    Row products, scores, sizes;
    for (size_t h = 0; h < head_scores.size(); ++h) {
      products.push_back((head_scores[h][j] + Bounded(epsilon)) * norms[h][j]);
      scores.push_back(head_scores[h][j]);
      sizes.push_back(norms[h][j]);
    }
    result.push_back(gqa == GqaProduct::mean_of_products
                         ? sum(products) / heads
                         : (sum(scores) / heads + Bounded(epsilon)) * (sum(sizes) / heads));
  }
  return result;
}

Row kept_attention_weights(const Row& attention_weights, Indices kept) {
  const Bounded mass = sum(at(attention_weights, kept));
  Row result(attention_weights.size());
  for (const int64_t i : kept) {
    result[static_cast<size_t>(i)] = attention_weights[static_cast<size_t>(i)] / mass;
  }
  return result;
}

Row eviction_weights(const Row& logits, Indices kept) {
  Row result = softmax(logits);
  const Bounded evicted_mass = sum(outside(result, kept));
  const Bounded normaliser = log_sum_exp(at(logits, kept));
  for (const int64_t i : kept) {
    const auto index = static_cast<size_t>(i);
    result[index] = -(evicted_mass * exp(logits[index] - normaliser));
  }
  return result;
}

Row eviction_weights_of_mean(const Row& attention_weights, Indices kept) {
  const Bounded evicted_mass = sum(outside(attention_weights, kept));
  const Row shares = kept_attention_weights(attention_weights, kept);
  Row result = attention_weights;
  for (const int64_t i : kept) {
    result[static_cast<size_t>(i)] = -(evicted_mass * shares[static_cast<size_t>(i)]);
  }
  return result;
}

Bounded output_perturbation(const Row& eviction_weights, MatrixView values, MatrixView output_projection) {
  return l1_norm(projected_sum(eviction_weights, values, output_projection));
}

Bounded output_perturbation_as_printed(const Row& attention_weights, MatrixView values,
                                       MatrixView output_projection, Indices kept) {
  const Row full = projected_sum(attention_weights, values, output_projection);
  const Row compressed =
      projected_sum(kept_attention_weights(attention_weights, kept), values, output_projection);
  Row change;
  for (size_t j = 0; j < full.size(); ++j) change.push_back(full[j] - compressed[j]);
  return l1_norm(change);
}

Bounded perturbation_bound(const Row& eviction_weights, const Row& norms) {
  Row sizes;
  for (const Bounded& weight : eviction_weights) sizes.push_back(abs(weight));
  return dot(sizes, norms);
}

Bounded perturbation_bound_as_printed(const Row& attention_weights, const Row& norms, Indices kept) {
  const Bounded factor = Bounded(2.0) - Bounded(1.0) / sum(at(attention_weights, kept));
  return dot(attention_weights, norms) - factor * norm_mass(attention_weights, norms, kept);
}

Bounded stage_two_bound(const Row& attention_weights, const Row& norms, Indices stage_one, Indices kept) {
  const Bounded outside_one = sum(outside(attention_weights, stage_one));
  const Bounded evicted = dot(outside(attention_weights, kept), outside(norms, kept));
  return evicted +
         outside_one / sum(at(attention_weights, stage_one)) * norm_mass(attention_weights, norms, kept);
}

// As computed, S'' is the difference of two sums.
Bounded stage_two_bound_as_printed(const Row& attention_weights, const Row& norms, Indices stage_one,
                                   Indices kept) {
  const Bounded factor = Bounded(2.0) - Bounded(1.0) / sum(at(attention_weights, stage_one));
  const Bounded one = norm_mass(attention_weights, norms, stage_one);
  const Bounded two = norm_mass(attention_weights, norms, kept) - one;
  return dot(attention_weights, norms) - factor * one - factor * two;
}

Bounded attention_only_bound(const Row& attention_weights, const Row& norms, Indices stage_one,
                             Indices kept) {
  const std::vector<int64_t> two = difference(kept, stage_one);
  const Bounded smallest = least(norms);
  Row excess;
  for (const Bounded& norm : at(norms, two)) excess.push_back(norm - smallest);
  const Bounded evicted = dot(outside(attention_weights, kept), outside(norms, kept));
  const Bounded ratio = sum(outside(attention_weights, stage_one)) / sum(at(attention_weights, stage_one));
  const Bounded inside =
      norm_mass(attention_weights, norms, stage_one) + smallest * sum(at(attention_weights, two));
  return evicted + dot(at(attention_weights, two), excess) + ratio * inside;
}

// As computed, the mass of stage two is the difference of two sums.
Bounded attention_only_bound_as_printed(const Row& attention_weights, const Row& norms, Indices stage_one,
                                        Indices kept) {
  const Bounded one = sum(at(attention_weights, stage_one));
  const Bounded factor = Bounded(2.0) - Bounded(1.0) / one;
  const Bounded two = sum(at(attention_weights, kept)) - one;
  return dot(attention_weights, norms) - factor * norm_mass(attention_weights, norms, stage_one) -
         least(norms) * factor * two;
}

}  // namespace kvbound::oracle
