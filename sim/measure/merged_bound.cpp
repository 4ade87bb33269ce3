#include "merged_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

namespace kvbound::sim {

using reference::CacheEntries;

namespace {

double largest_norm(MatrixView rows) {
  double largest = 0;
  for (int64_t i = 0; i < rows.rows; ++i) largest = std::max(largest, reference::norm(rows.row(i)));
  return largest;
}

}  // namespace

MergedBound::MergedBound(const traces::Layer& layer, const LayerRecord& record, int64_t query_head,
                         const reference::RoundingScale& scale, VectorView row_norms)
    : layer_(layer),
      record_(record),
      query_head_(query_head),
      scale_(scale),
      row_norms_(row_norms),
      values_(layer, record, layer.shape.kv_head_of(query_head)),
      largest_key_(largest_norm(keys().middle_rows(0, layer.prompt_tokens))) {}

MergedChange MergedBound::at(int64_t step, VectorView attention) {
  const CacheEntries& entries = values_.at(step);
  for (; seen_ <= step; ++seen_)
    largest_key_ = std::max(largest_key_, reference::norm(keys().row(layer_.prompt_tokens + seen_)));
  const MatrixView query = layer_.queries.slice(query_head_).middle_rows(layer_.window_queries + step, 1);
  const Matrix merged =
      reference::attention(query, entries.keys, entries.values, layer_.scale, entries.votes).weights;
  std::vector<double> weights(attention.size()), rest(row_norms_.size());
  values_.add(merged.row(0), weights, rest);
  MergedChange change;
  for (size_t j = 0; j < weights.size(); ++j) change.weights.weights.push_back(attention[j] - weights[j]);
  change.rest = projected_norm(rest);
  change.rounding = reference::perturbation_rounding(change.weights, scale_) +
                    rounding(query, entries, attention, merged.row(0));
  return change;
}

MatrixView MergedBound::keys() const { return layer_.keys.slice(layer_.shape.kv_head_of(query_head_)); }

// || output * W^O_h ||_1
double MergedBound::projected_norm(VectorView output) const {
  const MatrixView projection =
      layer_.output_projection.view().middle_rows(query_head_ * layer_.shape.head_dim, layer_.shape.head_dim);
  double sum = 0;
  for (int64_t m = 0; m < projection.cols; ++m) {
    double component = 0;
    for (int64_t c = 0; c < projection.rows; ++c) component += output[c] * projection(c, m);
    sum += std::abs(component);
  }
  return sum;
}

// Of double precision: with t >= the error of any logit, by Cauchy and Schwarz, and e that of an exponential,
// every weight A_j and A'_r is known up to rho = exp(2 (t + e)) - 1 + gamma of itself. That moves theta, and
// the full output, by at most 2 (rho + gamma) of the sums of absolute terms. Of the backend's precision:
// attention_errors.
double MergedBound::rounding(MatrixView query, const CacheEntries& entries, VectorView attention,
                             VectorView merged_attention) const {
  const reference::Arithmetic own = reference::double_precision();
  const int64_t tokens = std::ssize(attention), head_dim = layer_.shape.head_dim;
  const double logit_error = reference::sum_rounding(head_dim + 3, own) * std::abs(layer_.scale) *
                             reference::norm(query.row(0)) *
                             std::max(largest_key_, largest_norm(entries.keys));
  const double sums = reference::sum_rounding(tokens + head_dim + layer_.shape.model_dim + 8, own);
  const double rho = std::expm1(2 * (logit_error + own.exponential)) + sums;
  double sizes = 0;  // of absolute terms
  for (int64_t j = 0; j < tokens; ++j) sizes += attention[j] * scale_.absolute_projections[j];
  const Matrix errors = reference::attention_errors(query, entries.keys, entries.values, layer_.scale,
                                                    entries.votes, record_.attention)
                            .output;
  double output_error = 0;
  for (int64_t c = 0; c < head_dim; ++c) {
    double size = 0;
    for (int64_t r = 0; r < entries.entries(); ++r)
      size += merged_attention[r] * std::abs(entries.values(r, c));
    sizes += size * row_norms_[c];
    output_error += errors(0, c) * row_norms_[c];
  }
  const double error = 2 * (rho + sums) * sizes + output_error;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;  // an infinite share of nothing
}

}  // namespace kvbound::sim
