#include "definitions.hpp"

#include <algorithm>
#include <stdexcept>

#include <kvbound/reference/numerics/gram_norms.hpp>

#include "exact.hpp"

namespace kvbound::oracle {
namespace {

Real largest(const Row& row) { return std::ranges::max_element(row, {}, &Bounded::value)->value; }

// exp(z_j - m) with the error of evaluating it in double, m the largest computed logit. An error of m is
// common to all terms and cancels, so only the subtraction's rounding counts, for a difference that m's
// error may have enlarged.
Row shifted_exponentials(const Row& logits) {
  const Real m = largest(logits);
  Real m_error = 0;
  for (const Bounded& logit : logits) m_error = std::max(m_error, logit.bound);
  Row result;
  for (const Bounded& logit : logits) {
    const Real rounding = unit_roundoff() * (abs(logit.value - m) + logit.bound + m_error);
    result.push_back(exponential(exp(logit.value - m), logit.bound + rounding));
  }
  return result;
}

// The sum of two numbers that stands for no evaluation: errors add up.
Bounded together(const Bounded& a, const Bounded& b) { return {a.value + b.value, a.bound + b.bound}; }

Bounded l1_norm(const Row& row) {
  Row terms;
  for (const Bounded& entry : row) terms.push_back(abs(entry));
  return sum(terms);
}

Row projected_sum(const Row& weights, MatrixView values, MatrixView output_projection) {
  return weighted_sum(weighted_sum(weights, exactly(values)), exactly(output_projection));
}

template <class Number>
Number norm_mass(const RowOf<Number>& weights, const RowOf<Number>& norms, IndexSet entries) {
  return dot(at(weights, entries), at(norms, entries));
}

Bounded least(const Row& norms) {
  // |min fl(N) - min N| is at most the largest |fl(N) - N|.
  Bounded result = *std::ranges::min_element(norms, {}, &Bounded::value);
  for (const Bounded& norm : norms) result.bound = std::max(result.bound, norm.bound);
  return result;
}
Real least(const Reals& norms) { return *std::ranges::min_element(norms); }

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

// Evaluated as m + ln sum exp(z - m).
Bounded log_sum_exp(const Row& logits) {
  const Row exponentials = shifted_exponentials(logits);
  Real total = 0;
  for (const Bounded& exponential : exponentials) total += exponential.value;
  return rounded(largest(logits) + log(total), log(sum(exponentials)).bound);
}

Real log_sum_exp(const Reals& logits) {
  const Real m = *std::ranges::max_element(logits);
  Real total = 0;
  for (const Real& logit : logits) total += exp(logit - m);
  return m + log(total);
}

// With e_j the relative error of exponential j and w the exact weights, a quotient's is (e_j - sum w
// e) / (1 + sum w e): where one entry has nearly all weight, its own error matters little.
Row softmax(const Row& logits) {
  if (logits.empty()) return {};
  const Row exponentials = shifted_exponentials(logits);
  Row after{Bounded()};  // sums of the last exponentials
  for (auto each = exponentials.rbegin(); each != exponentials.rend(); ++each)
    after.push_back(together(after.back(), *each));
  const Bounded all = after.back();
  if (!(all.bound < all.value)) throw std::domain_error("weights of what is hardly known");
  const Real summed = gamma(std::ssize(logits) - 1), sum_error = summed / (1 - summed);
  Bounded before;
  Row result;
  for (const Bounded& own : exponentials) {
    after.pop_back();
    const Bounded others = together(before, after.back());
    const Real weight = own.value / all.value;
    const Real carried =
        (others.value * own.bound + own.value * others.bound) / (all.value * (all.value - all.bound));
    result.push_back(rounded(weight, carried + sum_error * (weight + carried)));
    before = together(before, own);
  }
  return result;
}

Reals softmax(const Reals& logits) {
  if (logits.empty()) return {};
  // Subtracted from all logits, because a scaled key may have a logit of billions.
  const Real m = *std::ranges::max_element(logits);
  Reals result;
  for (const Real& logit : logits) result.push_back(exp(logit - m));
  const Real total = sum(result);
  for (Real& weight : result) weight /= total;
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

template <class Number>
RowOf<Number> voted(const RowOf<Number>& votes, const RowOf<Number>& logits) {
  RowOf<Number> result;
  for (size_t j = 0; j < votes.size(); ++j) result.push_back(log(votes[j]) + logits[j]);
  return result;
}

Attention attention(MatrixView queries, MatrixView keys, MatrixView values, double scale, VectorView votes) {
  Attention result;
  for (Row row : logits(queries, keys, scale)) {
    if (!votes.empty()) row = voted(exactly(votes), row);
    result.output.push_back(weighted_sum(softmax(row), exactly(values)));
    result.log_sum_exp.push_back(log_sum_exp(row));
  }
  return result;
}

Row attention(VectorView query, const Rows& keys, const Rows& values, const Row& votes, double scale) {
  Row logits;
  for (const Row& key : keys) logits.push_back(Bounded(scale) * dot(exactly(query), key));
  return weighted_sum(softmax(voted(votes, logits)), values);
}

Rows window_attention(const LayerView& layer, int64_t window) {
  Rows result;
  for (int64_t h = 0; h < layer.shape.query_heads; ++h) {
    const MatrixView queries = layer.queries.slice(h).middle_rows(layer.queries.rows - window, window);
    const MatrixView keys = layer.keys.slice(h / (layer.shape.query_heads / layer.shape.kv_heads));
    const Rows weights = causal_softmax(logits(queries, keys, layer.scale), keys.rows - window);
    result.push_back(mean(weights));
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
  Rows result;
  for (auto first = scores.begin(); first != scores.end(); first += group_size)
    result.push_back(mean(Rows(first, first + group_size)));
  return result;
}

Row projected_value_norms(MatrixView values, MatrixView output_projection, Norm norm) {
  const Rows projection = exactly(output_projection);
  Row result;
  for (int64_t i = 0; i < values.rows; ++i) {
    const Row projected = weighted_sum(exactly(VectorView(values.row(i))), projection);
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

template <class Number>
RowOf<Number> kept_attention_weights(const RowOf<Number>& attention_weights, IndexSet kept) {
  const Number mass = sum(at(attention_weights, kept));
  RowOf<Number> result(attention_weights.size());
  for (const int64_t i : kept) {
    result[i] = attention_weights[i] / mass;
  }
  return result;
}

Row eviction_weights(const Row& logits, IndexSet kept) {
  Row result = softmax(logits);
  const Bounded evicted_mass = sum(outside(result, kept));
  const Bounded normaliser = log_sum_exp(at(logits, kept));
  for (const int64_t i : kept) {
    const int64_t index = i;
    result[index] = -(evicted_mass * exp(logits[index] - normaliser));
  }
  return result;
}

template <class Number>
RowOf<Number> eviction_weights_of_mean(const RowOf<Number>& attention_weights, IndexSet kept) {
  const Number evicted_mass = sum(outside(attention_weights, kept));
  const RowOf<Number> shares = kept_attention_weights(attention_weights, kept);
  RowOf<Number> result = attention_weights;
  for (const int64_t i : kept) {
    result[i] = -(evicted_mass * shares[i]);
  }
  return result;
}

Bounded output_perturbation(const Row& eviction_weights, MatrixView values, MatrixView output_projection) {
  return l1_norm(projected_sum(eviction_weights, values, output_projection));
}

Bounded output_perturbation_as_printed(const Row& attention_weights, MatrixView values,
                                       MatrixView output_projection, IndexSet kept) {
  const Row full = projected_sum(attention_weights, values, output_projection);
  const Row compressed =
      projected_sum(kept_attention_weights(attention_weights, kept), values, output_projection);
  Row change;
  for (size_t j = 0; j < full.size(); ++j) change.push_back(full[j] - compressed[j]);
  return l1_norm(change);
}

template <class Number>
Number perturbation_bound(const RowOf<Number>& eviction_weights, const RowOf<Number>& norms) {
  RowOf<Number> sizes;
  for (const Number& weight : eviction_weights) sizes.push_back(abs(weight));
  return dot(sizes, norms);
}

template <class Number>
Number perturbation_bound(const RowOf<Number>& attention_weights, const RowOf<Number>& norms, IndexSet kept) {
  return perturbation_bound(eviction_weights_of_mean(attention_weights, kept), norms);
}

template <class Number>
Number perturbation_bound_as_printed(const RowOf<Number>& attention_weights, const RowOf<Number>& norms,
                                     IndexSet kept) {
  const Number factor = Number(2) - Number(1) / sum(at(attention_weights, kept));
  return dot(attention_weights, norms) - factor * norm_mass(attention_weights, norms, kept);
}

template <class Number>
Number stage_two_bound(const RowOf<Number>& attention_weights, const RowOf<Number>& norms, IndexSet stage_one,
                       IndexSet kept) {
  const Number outside_one = sum(outside(attention_weights, stage_one));
  const Number evicted = dot(outside(attention_weights, kept), outside(norms, kept));
  return evicted +
         outside_one * (norm_mass(attention_weights, norms, kept) / sum(at(attention_weights, stage_one)));
}

// The computed S'' is the difference of two sums.
template <class Number>
Number stage_two_bound_as_printed(const RowOf<Number>& attention_weights, const RowOf<Number>& norms,
                                  IndexSet stage_one, IndexSet kept) {
  const Number factor = Number(2) - Number(1) / sum(at(attention_weights, stage_one));
  const Number one = norm_mass(attention_weights, norms, stage_one);
  const Number two = norm_mass(attention_weights, norms, kept) - one;
  return dot(attention_weights, norms) - factor * one - factor * two;
}

template <class Number>
Number attention_only_bound(const RowOf<Number>& attention_weights, const RowOf<Number>& norms,
                            IndexSet stage_one, IndexSet kept) {
  const std::vector<int64_t> two = exact::difference(kept, stage_one);
  const Number smallest = least(norms);
  RowOf<Number> excess;
  for (const Number& norm : at(norms, two)) excess.push_back(norm - smallest);
  const Number evicted = dot(outside(attention_weights, kept), outside(norms, kept));
  const Number outside_one = sum(outside(attention_weights, stage_one));
  const Number inside =
      norm_mass(attention_weights, norms, stage_one) + smallest * sum(at(attention_weights, two));
  return evicted + dot(at(attention_weights, two), excess) +
         outside_one * (inside / sum(at(attention_weights, stage_one)));
}

// The computed mass of stage two is the difference of two sums.
template <class Number>
Number attention_only_bound_as_printed(const RowOf<Number>& attention_weights, const RowOf<Number>& norms,
                                       IndexSet stage_one, IndexSet kept) {
  const Number one = sum(at(attention_weights, stage_one));
  const Number factor = Number(2) - Number(1) / one;
  const Number two = sum(at(attention_weights, kept)) - one;
  return dot(attention_weights, norms) - factor * norm_mass(attention_weights, norms, stage_one) -
         least(norms) * factor * two;
}

template Reals voted(const Reals&, const Reals&);
template Reals kept_attention_weights(const Reals&, IndexSet);
template Reals eviction_weights_of_mean(const Reals&, IndexSet);
template Real perturbation_bound(const Reals&, const Reals&);
template Real perturbation_bound(const Reals&, const Reals&, IndexSet);
template Real perturbation_bound_as_printed(const Reals&, const Reals&, IndexSet);
template Real stage_two_bound(const Reals&, const Reals&, IndexSet, IndexSet);
template Real stage_two_bound_as_printed(const Reals&, const Reals&, IndexSet, IndexSet);
template Real attention_only_bound(const Reals&, const Reals&, IndexSet, IndexSet);
template Real attention_only_bound_as_printed(const Reals&, const Reals&, IndexSet, IndexSet);
template Row voted(const Row&, const Row&);
template Row kept_attention_weights(const Row&, IndexSet);
template Row eviction_weights_of_mean(const Row&, IndexSet);
template Bounded perturbation_bound(const Row&, const Row&);
template Bounded perturbation_bound(const Row&, const Row&, IndexSet);
template Bounded perturbation_bound_as_printed(const Row&, const Row&, IndexSet);
template Bounded stage_two_bound(const Row&, const Row&, IndexSet, IndexSet);
template Bounded stage_two_bound_as_printed(const Row&, const Row&, IndexSet, IndexSet);
template Bounded attention_only_bound(const Row&, const Row&, IndexSet, IndexSet);
template Bounded attention_only_bound_as_printed(const Row&, const Row&, IndexSet, IndexSet);

}  // namespace kvbound::oracle
