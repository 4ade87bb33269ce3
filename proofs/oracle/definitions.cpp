#include "definitions.hpp"

#include <algorithm>
#include <numeric>

#include <kvbound/reference/numerics/gram_norms.hpp>

#include "exact.hpp"

namespace kvbound::oracle {
namespace {

Real largest(const Row& row) { return std::ranges::max_element(row, {}, &Bounded::value)->value; }

// exp(z), not shifted by the largest logit.
std::vector<Real> exponentials(const Row& logits) {
  std::vector<Real> result;
  for (const Bounded& logit : logits) result.push_back(exp(logit.value));
  return result;
}

Real total(const std::vector<Real>& terms) { return std::accumulate(terms.begin(), terms.end(), Real(0)); }

// exp(z_j - m) with the error of evaluating it in double, m the largest computed logit. An error of m is common to all
// terms and cancels, so only the subtraction's rounding counts, for a difference that m's error may have enlarged.
Row shifted_exponentials(const Row& logits, const std::vector<Real>& exponentials) {
  const Real m = largest(logits), largest_exponential = *std::ranges::max_element(exponentials);
  Real m_error = 0;
  for (const Bounded& logit : logits) m_error = std::max(m_error, logit.bound);
  Row result;
  for (size_t j = 0; j < logits.size(); ++j) {
    const Real rounding = unit_roundoff() * (abs(logits[j].value - m) + logits[j].bound + m_error);
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

// The bound is that of the computed form m + ln sum exp(z - m); the value is ln sum exp(z).
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
    const auto size = std::ssize(row);
    for (int64_t j = 0; j < size; ++j) {
      Bounded best = row[j];
      for (int64_t other = 0; other < size; ++other) {
        if (2 * std::abs(other - j) > width - 1) continue;
        // |max fl(x) - max x| is at most the largest |fl(x) - x|.
        best.value = std::max(best.value, row[other].value);
        best.bound = std::max(best.bound, row[other].bound);
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
    // Where the reference takes the Gram matrix, it guarantees this much less.
    if (norm == Norm::l2) result.back().bound += reference::kGramNormError * result.back().value;
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
    result[i] = attention_weights[i] / mass;
  }
  return result;
}

Row eviction_weights(const Row& logits, Indices kept) {
  Row result = softmax(logits);
  const Bounded evicted_mass = sum(outside(result, kept));
  const Bounded normaliser = log_sum_exp(at(logits, kept));
  for (const int64_t i : kept) {
    const int64_t index = i;
    result[index] = -(evicted_mass * exp(logits[index] - normaliser));
  }
  return result;
}

Row eviction_weights_of_mean(const Row& attention_weights, Indices kept) {
  const Bounded evicted_mass = sum(outside(attention_weights, kept));
  const Row shares = kept_attention_weights(attention_weights, kept);
  Row result = attention_weights;
  for (const int64_t i : kept) {
    result[i] = -(evicted_mass * shares[i]);
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
         outside_one * (norm_mass(attention_weights, norms, kept) / sum(at(attention_weights, stage_one)));
}

// The computed S'' is the difference of two sums.
Bounded stage_two_bound_as_printed(const Row& attention_weights, const Row& norms, Indices stage_one,
                                   Indices kept) {
  const Bounded factor = Bounded(2.0) - Bounded(1.0) / sum(at(attention_weights, stage_one));
  const Bounded one = norm_mass(attention_weights, norms, stage_one);
  const Bounded two = norm_mass(attention_weights, norms, kept) - one;
  return dot(attention_weights, norms) - factor * one - factor * two;
}

Bounded attention_only_bound(const Row& attention_weights, const Row& norms, Indices stage_one,
                             Indices kept) {
  const std::vector<int64_t> two = exact::difference(kept, stage_one);
  const Bounded smallest = least(norms);
  Row excess;
  for (const Bounded& norm : at(norms, two)) excess.push_back(norm - smallest);
  const Bounded evicted = dot(outside(attention_weights, kept), outside(norms, kept));
  const Bounded outside_one = sum(outside(attention_weights, stage_one));
  const Bounded inside =
      norm_mass(attention_weights, norms, stage_one) + smallest * sum(at(attention_weights, two));
  return evicted + dot(at(attention_weights, two), excess) +
         outside_one * (inside / sum(at(attention_weights, stage_one)));
}

// The computed mass of stage two is the difference of two sums.
Bounded attention_only_bound_as_printed(const Row& attention_weights, const Row& norms, Indices stage_one,
                                        Indices kept) {
  const Bounded one = sum(at(attention_weights, stage_one));
  const Bounded factor = Bounded(2.0) - Bounded(1.0) / one;
  const Bounded two = sum(at(attention_weights, kept)) - one;
  return dot(attention_weights, norms) - factor * norm_mass(attention_weights, norms, stage_one) -
         least(norms) * factor * two;
}

}  // namespace kvbound::oracle
