#include "theta_sweep.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "selection.hpp"

namespace kvbound::reference {
namespace {

// N^h_j / mean_j N^h_j over all tokens, at the candidates; 0 for a head whose values are all zero.
Matrix relative_norms(const ThetaSweepInput& input) {
  Matrix relative(input.head_scores.rows, input.head_scores.cols);
  for (int64_t h = 0; h < relative.rows(); ++h) {
    const VectorView norms = input.projected_value_norms.row(h);
    double mean = 0;
    for (const double norm : norms) mean += norm;
    mean /= static_cast<double>(norms.size());
    for (int64_t j = 0; j < relative.cols(); ++j) {
      const double norm = norms[input.candidates[j]];
      relative(h, j) = mean > 0 ? norm / mean : 0;
    }
  }
  return relative;
}

// sum_h theta_h of a selection; infinite if the kept entries hold no attention mass of some head.
double total_bound(const ThetaSweepInput& input, const std::vector<int64_t>& selected) {
  std::vector<int64_t> kept(input.always_kept.begin(), input.always_kept.end());
  for (const int64_t i : selected) kept.push_back(input.candidates[i]);
  std::ranges::sort(kept);
  double total = 0;
  for (int64_t h = 0; h < input.attention_weights.rows; ++h) {
    const VectorView weights = input.attention_weights.row(h);
    if (!(attention_mass(weights, kept) > 0)) return kInfinity;
    total += perturbation_bound(eviction_weights(weights, kept), input.projected_value_norms.row(h));
  }
  return total;
}

void require_valid(const ThetaSweepInput& input, int64_t k) {
  const MatrixView weights = input.attention_weights;
  const MatrixView norms = input.projected_value_norms;
  require_equal("candidates", std::ssize(input.candidates), "columns of head_scores", input.head_scores.cols);
  require_equal("columns of attention_weights", weights.cols, "columns of projected_value_norms", norms.cols);
  require_equal("rows of attention_weights", weights.rows, "rows of projected_value_norms", norms.rows);
  require_equal("rows of attention_weights", weights.rows, "rows of head_scores", input.head_scores.rows);
  for (int64_t h = 0; h < weights.rows; ++h) {
    require_finite("attention_weights", weights.row(h));
    require_finite("projected_value_norms", norms.row(h));
  }
  for (const std::vector<int64_t>& rival : input.rivals) {
    require_equal("entries of a rival", std::ssize(rival), "k", k);
  }
}

}  // namespace

Matrix theta_sweep_scores(const ThetaSweepInput& input) {
  const Matrix norms = relative_norms(input);
  const std::vector<double> lambdas = theta_sweep_lambdas();
  Matrix all(std::ssize(lambdas), input.head_scores.cols);
  for (int64_t i = 0; i < all.rows(); ++i) {
    const std::span<double> scores = all.row(i);
    for (int64_t h = 0; h < norms.rows(); ++h) {
      for (int64_t j = 0; j < all.cols(); ++j) {
        const double factor = lambdas[i] == kInfinity ? 1 : lambdas[i] + norms(h, j);
        scores[j] += input.head_scores(h, j) * factor;
      }
    }
    for (double& score : scores) score /= static_cast<double>(norms.rows());
  }
  return all;
}

std::vector<int64_t> select_theta_sweep(const ThetaSweepInput& input, int64_t k) {
  require_valid(input, k);
  std::optional<std::vector<int64_t>> best;
  double best_bound = kInfinity;
  const auto consider = [&](std::vector<int64_t> selected) {
    const double bound = total_bound(input, selected);
    if (best && !(bound < best_bound)) return;
    best = std::move(selected);
    best_bound = bound;
  };
  const Matrix scores = theta_sweep_scores(input);
  for (int64_t i = 0; i < scores.rows(); ++i) consider(select_top(scores.row(i), k));
  for (const std::vector<int64_t>& rival : input.rivals) consider(rival);
  return *best;
}

}  // namespace kvbound::reference
