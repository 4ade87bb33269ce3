#include "metric_errors.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>
#include <kvbound/sim/measure/metrics.hpp>

namespace kvbound::sim {

using reference::PerturbationErrors;

MetricErrors::MetricErrors(const traces::Layer& layer, const TestedImplementation& implementation)
    : layer_(layer),
      shape_(layer.shape),
      arithmetic_(implementation.arithmetic.attention),
      merges_(rules_of(implementation.policy.merge).merges),
      norms_(reference::projected_value_norms(shape_, layer.values, layer.output_projection, Norm::l1)),
      norm_errors_(reference::projected_value_norm_errors(shape_, layer.values, layer.output_projection,
                                                          Norm::l1, norms_,
                                                          implementation.arithmetic.norms(Norm::l1))),
      row_norms_(reference::projection_row_norms(layer.output_projection, shape_.head_dim)),
      kept_mass_(implementation.steps, shape_.query_heads),
      bound_(kept_mass_),
      perturbation_(kept_mass_),
      terms_(kept_mass_) {}

void MetricErrors::add(const AttendedCache& attended) {
  const int64_t t = attended.step, g = attended.kv_head, tokens = layer_.prompt_tokens + t + 1;
  std::vector<int64_t> cached = attended.cache.positions;
  std::ranges::sort(cached);
  const Matrix keys = reference::rows_of(layer_.keys.slice(g), cached),
               values = reference::rows_of(layer_.values.slice(g), cached);
  const auto group = [&](MatrixView rows) { return shape_.group_rows(rows, g); };
  reference::PerturbationCase given;
  given.queries = attended.queries;
  given.keys = layer_.keys.slice(g).middle_rows(0, tokens);
  given.values = layer_.values.slice(g).middle_rows(0, tokens);
  given.scale = layer_.scale;
  given.kept = cached;
  given.kept_keys = keys;
  given.kept_values = values;
  given.norms = group(norms_).middle_cols(0, tokens);
  given.norm_errors = group(norm_errors_).middle_cols(0, tokens);
  given.projection_norms = group(row_norms_);
  given.model_dim = shape_.model_dim;
  const std::vector<PerturbationErrors> errors = reference::perturbation_errors(given, arithmetic_);
  for (int64_t i = 0; i < shape_.group_size(); ++i) {
    const int64_t h = g * shape_.group_size() + i;
    const PerturbationErrors figure = merges_ ? of_outputs(attended, i) : errors[i];
    kept_mass_(t, h) = errors[i].kept_mass;
    bound_(t, h) = errors[i].bound;
    perturbation_(t, h) = figure.perturbation;
    terms_(t, h) = figure.terms;
  }
}

// Bounds for ||(o - o^) W||_1, given bounds on the errors of the outputs o (full cache)
// and o^ (compressed cache).
PerturbationErrors MetricErrors::of_outputs(const AttendedCache& attended, int64_t query) const {
  const int64_t g = attended.kv_head, h = g * shape_.group_size() + query,
                tokens = layer_.prompt_tokens + attended.step + 1;
  const MatrixView keys = layer_.keys.slice(g).middle_rows(0, tokens),
                   values = layer_.values.slice(g).middle_rows(0, tokens),
                   own = attended.queries.middle_rows(query, 1);
  const Matrix full = reference::attention(own, keys, values, layer_.scale).output;
  const Matrix off = reference::attention_errors(own, keys, values, layer_.scale, {}, arithmetic_).output;
  const double products = reference::sum_rounding(2 * shape_.head_dim + shape_.model_dim + 8, arithmetic_) +
                          4 * arithmetic_.input + arithmetic_.tensor_share();
  const double floor = arithmetic_.input_floor * static_cast<double>(shape_.model_dim);
  PerturbationErrors figure;
  for (int64_t c = 0; c < shape_.head_dim; ++c) {
    const double error = off(0, c) + attended.errors.output(query, c);
    const double size = std::abs(full(0, c)) + std::abs(attended.output(query, c)) + error;
    figure.terms += size * (row_norms_(h, c) + floor);
    figure.perturbation += error * row_norms_(h, c) + products * size * row_norms_(h, c) + 2 * floor * size;
  }
  return figure;
}

std::vector<TensorAgreement> MetricErrors::judge(const LayerRecord& record, const std::vector<char>& certain,
                                                 const LayerClaims& claims) const {
  Matrix prompt_norms(shape_.query_heads, layer_.prompt_tokens);
  for (int64_t h = 0; h < norms_.rows(); ++h) {
    std::ranges::copy(norms_.row(h).first(layer_.prompt_tokens), prompt_norms.row(h).begin());
  }
  const LayerMetrics metrics = std::move(measure(layer_, {record}, prompt_norms).front());
  std::vector<bool> heads, steps(record.steps.size(), true);
  for (size_t i = 0; i < certain.size(); ++i) {
    heads.insert(heads.end(), static_cast<size_t>(shape_.group_size()), certain[i] != 0);
    const size_t step = i / static_cast<size_t>(shape_.kv_heads);
    steps[step] = steps[step] && certain[i];
  }
  std::vector<TensorAgreement> all;
  const auto add = [&](const char* tensor, const std::optional<RealClaim>& claim, VectorView expected,
                       VectorView bounds, const std::vector<bool>& sure) {
    if (!claim) return;
    all.push_back(merges_ ? compare_uncertain(tensor, *claim, expected, bounds, sure)
                          : compare(tensor, *claim, expected, bounds));
  };
  add("kept_mass", claims.kept_mass, metrics.kept_mass.numbers(), kept_mass_.numbers(), heads);
  if (metrics.bound) add("bound", claims.bound, metrics.bound->numbers(), bound_.numbers(), heads);
  add("perturbation", claims.perturbation, metrics.perturbation.numbers(), perturbation_.numbers(), heads);
  add("layer_perturbation", claims.layer_perturbation, metrics.layer_perturbation, layer_errors(), steps);
  return all;
}

// Error bounds of ||sum_h (o_h - o^_h) W_h||_1, [steps]: the heads' own errors, plus the rounding of one sum
// over the products of all heads.
std::vector<double> MetricErrors::layer_errors() const {
  const double adding =
      reference::sum_rounding(shape_.query_heads * shape_.head_dim + shape_.query_heads, arithmetic_);
  std::vector<double> errors;
  for (int64_t t = 0; t < perturbation_.rows(); ++t) {
    const auto sum = [&](const Matrix& figures) {
      return std::accumulate(figures.row(t).begin(), figures.row(t).end(), 0.0);
    };
    errors.push_back(sum(perturbation_) + adding * sum(terms_));
  }
  return errors;
}

}  // namespace kvbound::sim
