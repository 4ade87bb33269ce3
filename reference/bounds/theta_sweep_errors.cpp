#include "theta_sweep_errors.hpp"

#include <numeric>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/selection_rules.hpp>

#include "softmax_errors.hpp"

namespace kvbound::reference {
namespace {

// A head's norms relative to their mean, and bounds on their errors.
struct RelativeNorms {
  RelativeNorms(VectorView norms, VectorView norm_errors, const Arithmetic& arithmetic) {
    const auto tokens = static_cast<double>(norms.size());
    const double mean = std::accumulate(norms.begin(), norms.end(), 0.0) / tokens,
                 mean_error = std::accumulate(norm_errors.begin(), norm_errors.end(), 0.0) / tokens;
    const double off =
        mean_error + rounding::gamma(tokens + 1, arithmetic) * (mean + mean_error) + arithmetic.smallest;
    for (size_t j = 0; j < norms.size(); ++j) {
      const double share = mean > 0 ? norms[j] / mean : 0;
      const bool is_zero = mean == 0 && mean_error == 0;
      values.push_back(share);
      errors.push_back(is_zero ? 0 : mean > off ? (norm_errors[j] + share * off) / (mean - off) : kInfinity);
    }
  }

  std::vector<double> values, errors;  // [tokens]
};

}  // namespace

Matrix theta_sweep_score_errors(const ThetaSweepInput& input, MatrixView head_score_errors,
                                MatrixView norm_errors, const Arithmetic& arithmetic) {
  const std::vector<double> lambdas = theta_sweep_lambdas();
  const MatrixView scores = input.head_scores;
  const double heads = static_cast<double>(scores.rows), rounded = rounding::gamma(heads + 6, arithmetic);
  Matrix all(std::ssize(lambdas), scores.cols);
  for (int64_t h = 0; h < scores.rows; ++h) {
    const RelativeNorms norms(input.projected_value_norms.row(h), norm_errors.row(h), arithmetic);
    for (int64_t i = 0; i < all.rows(); ++i) {
      for (int64_t j = 0; j < all.cols(); ++j) {
        const bool is_mixed = lambdas[i] < kInfinity;
        const double factor = is_mixed ? lambdas[i] + norms.values[input.candidates[j]] : 1,
                     factor_error = is_mixed ? norms.errors[input.candidates[j]] : 0;
        const double score = scores(h, j), off = head_score_errors(h, j);
        const double moved = off * factor + (factor_error > 0 ? (score + off) * factor_error : 0);
        all(i, j) += (moved + rounded * (score * factor + moved) + 3 * arithmetic.smallest) / heads;
      }
    }
  }
  return all;
}

}  // namespace kvbound::reference
