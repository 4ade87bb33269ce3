#include "perturbation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/exponential.hpp>
#include <kvbound/reference/numerics/product.hpp>

#include "attention.hpp"

namespace kvbound::reference {
namespace {

int64_t length(VectorView numbers) { return std::ssize(numbers); }
double at(VectorView numbers, int64_t i) { return numbers[i]; }

void require_mass(double mass, const char* holder) {
  if (!(mass > 0)) throw NonFinite(std::string(holder) + " hold no attention mass: 1/mass is infinite");
}

void require_norms(VectorView attention_weights, VectorView norms) {
  require_equal("attention weights", length(attention_weights), "projected value norms", length(norms));
}

std::vector<bool> marks(int64_t tokens, Indices entries) {
  std::vector<bool> marked(tokens, false);
  for (const int64_t i : entries) marked[i] = true;
  return marked;
}

double l1_norm(VectorView numbers) {
  double sum = 0;
  for (const double number : numbers) sum += std::abs(number);
  return sum;
}

// weights * values * output_projection: a weighted sum of values, in hidden-state units.
Matrix projected_sum(VectorView weights, MatrixView values, MatrixView output_projection) {
  require_equal("attention weights", length(weights), "rows of values", values.rows);
  Matrix head_output(1, values.cols);
  multiply({weights.data(), 1, length(weights)}, values, head_output.view());
  Matrix hidden(1, output_projection.cols);
  multiply(head_output, output_projection, hidden.view());
  return hidden;
}

// sum A_i, sum A_i ||V_i|| over a set of entries.
struct Sums {
  double mass = 0;
  double norm_mass = 0;
};

Sums sums_over(VectorView weights, VectorView norms, Indices entries) {
  Sums sums;
  for (const int64_t i : entries) {
    sums.mass += at(weights, i);
    sums.norm_mass += at(weights, i) * at(norms, i);
  }
  return sums;
}

// The same sums over all entries outside the (marked) set.
Sums sums_outside(VectorView weights, VectorView norms, const std::vector<bool>& marked) {
  Sums sums;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (marked[i]) continue;
    sums.mass += weights[i];
    sums.norm_mass += weights[i] * norms[i];
  }
  return sums;
}

// w: the attention weights A of the evicted entries; for the kept entries -e A',
// where the shares A' sum to 1.
EvictionWeights signed_weights(VectorView attention_weights, Indices kept, VectorView shares) {
  EvictionWeights result{{attention_weights.begin(), attention_weights.end()}, 0, 0};
  const std::vector<bool> is_kept = marks(length(attention_weights), kept);
  for (size_t i = 0; i < is_kept.size(); ++i) {
    (is_kept[i] ? result.kept_mass : result.evicted_mass) += attention_weights[i];
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    result.weights[kept[i]] = -result.evicted_mass * shares[i];
  }
  return result;
}

double smallest(VectorView norms) { return *std::ranges::min_element(norms); }

}  // namespace

double attention_mass(VectorView attention_weights, Indices entries) {
  double mass = 0;
  for (const int64_t i : entries) mass += at(attention_weights, i);
  return mass;
}

std::vector<double> kept_attention_weights(VectorView attention_weights, Indices kept) {
  const double mass = attention_mass(attention_weights, kept);
  require_mass(mass, "the kept entries");
  std::vector<double> weights(attention_weights.size(), 0.0);
  for (const int64_t i : kept) weights[i] = at(attention_weights, i) / mass;
  return weights;
}

EvictionWeights eviction_weights(VectorView logits, VectorView attention_weights, Indices kept) {
  require_equal("logits", length(logits), "attention weights", length(attention_weights));
  std::vector<double> kept_logits;
  for (const int64_t i : kept) kept_logits.push_back(at(logits, i));
  const double normaliser = log_sum_exp(kept_logits);
  require_finite("log-sum-exp of the kept logits", {&normaliser, 1});
  exponentiate(kept_logits, normaliser);
  return signed_weights(attention_weights, kept, kept_logits);
}

EvictionWeights eviction_weights(VectorView attention_weights, Indices kept) {
  const double mass = attention_mass(attention_weights, kept);
  require_mass(mass, "the kept entries");
  std::vector<double> shares;
  for (const int64_t i : kept) shares.push_back(at(attention_weights, i) / mass);
  return signed_weights(attention_weights, kept, shares);
}

double output_perturbation(const EvictionWeights& eviction, MatrixView values, MatrixView output_projection) {
  return l1_norm(projected_sum(eviction.weights, values, output_projection).numbers());
}

double perturbation_bound(const EvictionWeights& eviction, VectorView projected_value_norms) {
  require_norms(eviction.weights, projected_value_norms);
  double bound = 0;
  for (size_t i = 0; i < projected_value_norms.size(); ++i) {
    bound += std::abs(eviction.weights[i]) * projected_value_norms[i];
  }
  return bound;
}

double stage_two_bound(VectorView attention_weights, VectorView projected_value_norms, Indices stage_one,
                       Indices kept) {
  require_norms(attention_weights, projected_value_norms);
  const int64_t tokens = length(attention_weights);
  const double sigma = attention_mass(attention_weights, stage_one);
  require_mass(sigma, "stage one's entries");
  const Sums outside_one = sums_outside(attention_weights, projected_value_norms, marks(tokens, stage_one));
  const Sums evicted = sums_outside(attention_weights, projected_value_norms, marks(tokens, kept));
  const Sums inside = sums_over(attention_weights, projected_value_norms, kept);
  // Not (mass / sigma) * S: that quotient may overflow where S is 0.
  return evicted.norm_mass + outside_one.mass * (inside.norm_mass / sigma);
}

double attention_only_bound(VectorView attention_weights, VectorView projected_value_norms, Indices stage_one,
                            Indices kept) {
  require_norms(attention_weights, projected_value_norms);
  const int64_t tokens = length(attention_weights);
  const Sums one = sums_over(attention_weights, projected_value_norms, stage_one);
  require_mass(one.mass, "stage one's entries");
  const std::vector<bool> in_one = marks(tokens, stage_one);
  const Sums outside_one = sums_outside(attention_weights, projected_value_norms, in_one);
  const Sums evicted = sums_outside(attention_weights, projected_value_norms, marks(tokens, kept));
  const double least = smallest(projected_value_norms);
  double two_mass = 0;
  double two_excess = 0;  // sum over stage two of A_i (||V_i|| - M)
  for (const int64_t i : kept) {
    if (in_one[i]) continue;
    two_mass += at(attention_weights, i);
    two_excess += at(attention_weights, i) * (at(projected_value_norms, i) - least);
  }
  return evicted.norm_mass + two_excess + outside_one.mass * ((one.norm_mass + least * two_mass) / one.mass);
}

RoundingScale rounding_scale(MatrixView values, MatrixView output_projection) {
  require_equal("columns of values", values.cols, "rows of output_projection", output_projection.rows);
  RoundingScale scale{output_projection.rows, output_projection.cols, 0, {}};
  std::vector<double> row_norms;
  for (int64_t c = 0; c < output_projection.rows; ++c) {
    row_norms.push_back(l1_norm(output_projection.row(c)));
    scale.projection_sum += row_norms.back();
  }
  for (int64_t i = 0; i < values.rows; ++i) {
    double sum = 0;
    for (size_t c = 0; c < row_norms.size(); ++c) sum += std::abs(values.row(i)[c]) * row_norms[c];
    scale.absolute_projections.push_back(sum);
  }
  // Twice, because the |w_i| sum to at most 2: neither L nor theta, nor what they are made of, overflows.
  const double largest = 2 * (l1_norm(scale.absolute_projections) + scale.projection_sum);
  require_finite("the sum of absolute projected values", {&largest, 1});
  return scale;
}

double perturbation_rounding(const EvictionWeights& eviction, const RoundingScale& scale) {
  constexpr double kUnitRoundoff = std::numeric_limits<double>::epsilon() / 2;
  constexpr double kUnderflow = std::numeric_limits<double>::denorm_min();
  if (eviction.weights.size() > scale.absolute_projections.size()) {
    throw ShapeMismatch(std::to_string(eviction.weights.size()) +
                        " eviction weights but a rounding scale of " +
                        std::to_string(scale.absolute_projections.size()) + " tokens");
  }
  const auto tokens = static_cast<double>(eviction.weights.size());
  const auto head_dim = static_cast<double>(scale.head_dim);
  const auto model_dim = static_cast<double>(scale.model_dim);
  const double ku = (tokens + head_dim + model_dim + 8) * kUnitRoundoff;
  const VectorView terms = VectorView(scale.absolute_projections).first(eviction.weights.size());
  return 2 * (ku / (1 - ku)) * perturbation_bound(eviction, terms) +
         kUnderflow * (tokens * (1 + scale.projection_sum) + 2 * head_dim * model_dim);
}

}  // namespace kvbound::reference
