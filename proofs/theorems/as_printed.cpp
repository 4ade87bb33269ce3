#include "as_printed.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/product.hpp>

namespace kvbound::proofs {
namespace {

int64_t length(VectorView numbers) { return std::ssize(numbers); }

void require_norms(VectorView attention_weights, VectorView norms) {
  require_equal("attention weights", length(attention_weights), "projected value norms", length(norms));
}

// sum A_i ||V_i|| over a set of entries.
double norm_mass(VectorView weights, VectorView norms, Indices entries) {
  double sum = 0;
  for (const int64_t i : entries) sum += weights[i] * norms[i];
  return sum;
}

// C = sum A_i ||V_i|| over all entries.
double all_norm_mass(VectorView weights, VectorView norms) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * norms[i];
  return sum;
}

double mass_of(VectorView weights, Indices entries, const char* holder) {
  const double mass = reference::attention_mass(weights, entries);
  if (!(mass > 0)) throw NonFinite(std::string(holder) + " hold no attention mass: 1/mass is infinite");
  return mass;
}

// weights * values * output_projection
Matrix projected_sum(VectorView weights, MatrixView values, MatrixView output_projection) {
  require_equal("attention weights", length(weights), "rows of values", values.rows);
  Matrix head_output(1, values.cols);
  reference::multiply({weights.data(), 1, length(weights)}, values, head_output.view());
  Matrix hidden(1, output_projection.cols);
  reference::multiply(head_output, output_projection, hidden.view());
  return hidden;
}

// The terms common to both bounds of stage two.
struct StageOne {
  StageOne(VectorView attention_weights, VectorView norms, Indices stage_one) {
    require_norms(attention_weights, norms);
    mass = mass_of(attention_weights, stage_one, "stage one's entries");
    own = norm_mass(attention_weights, norms, stage_one);
    factor = 2 - 1 / mass;
    rest = all_norm_mass(attention_weights, norms) - factor * own;
  }

  double mass = 0;    // sigma
  double own = 0;     // S'
  double factor = 0;  // 2 - 1/sigma
  double rest = 0;    // C' = C - (2 - 1/sigma) S'
};

}  // namespace

double output_perturbation_as_printed(VectorView attention_weights, MatrixView values,
                                      MatrixView output_projection, Indices kept) {
  const Matrix full = projected_sum(attention_weights, values, output_projection);
  const Matrix compressed =
      projected_sum(reference::kept_attention_weights(attention_weights, kept), values, output_projection);
  double distance = 0;
  for (int64_t j = 0; j < full.cols(); ++j) distance += std::abs(full(0, j) - compressed(0, j));
  return distance;
}

double perturbation_bound_as_printed(VectorView attention_weights, VectorView projected_value_norms,
                                     Indices kept) {
  require_norms(attention_weights, projected_value_norms);
  const double mass = mass_of(attention_weights, kept, "the kept entries");
  return all_norm_mass(attention_weights, projected_value_norms) -
         (2 - 1 / mass) * norm_mass(attention_weights, projected_value_norms, kept);
}

double stage_two_bound_as_printed(VectorView attention_weights, VectorView projected_value_norms,
                                  Indices stage_one, Indices kept) {
  const StageOne one(attention_weights, projected_value_norms, stage_one);
  return one.rest - one.factor * (norm_mass(attention_weights, projected_value_norms, kept) - one.own);
}

double attention_only_bound_as_printed(VectorView attention_weights, VectorView projected_value_norms,
                                       Indices stage_one, Indices kept) {
  const StageOne one(attention_weights, projected_value_norms, stage_one);
  const double two_mass = reference::attention_mass(attention_weights, kept) - one.mass;
  return one.rest - *std::ranges::min_element(projected_value_norms) * one.factor * two_mass;
}

}  // namespace kvbound::proofs
