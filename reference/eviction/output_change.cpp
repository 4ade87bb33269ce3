#include "output_change.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::reference {
namespace {

QueryAttention leave_out(VectorView logits, int64_t dominant, std::span<double> weights) {
  const auto at = static_cast<size_t>(dominant);
  const double logit = logits[at];
  std::ranges::copy(logits, weights.begin());
  weights[at] = -kInfinity;
  if (logits.size() == 1) {
    weights[at] = 0;
    return {logit, dominant, logit, 1, 0, -kInfinity};
  }
  const double largest = *std::ranges::max_element(weights);
  const double log_sum = std::log(softmax(weights, largest, weights));
  // Not logit - (largest + log_sum): that sum would lose low bits if it is large.
  const double gap = logit - largest - log_sum;
  return {logit - std::log(sigmoid(gap)), dominant, logit, sigmoid(gap), sigmoid(-gap), largest + log_sum};
}

// x <- x_factor v - origin_factor o
void combine(const ScaledDifference<double>& by, VectorView value, VectorView output, std::span<double> x) {
  for (size_t c = 0; c < x.size(); ++c) x[c] = by.x_factor * value[c] - by.origin_factor * output[c];
}

}  // namespace

double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

QueryAttention query_attention(VectorView logits, double largest, bool leaves_out_dominant,
                               std::span<double> weights) {
  const double sum = softmax(logits, largest, weights);
  if (leaves_out_dominant && sum < 2) {  // the largest weight is 1 / sum
    return leave_out(logits, std::ranges::max_element(logits) - logits.begin(), weights);
  }
  QueryAttention attention;
  attention.log_sum_exp = largest + std::log(sum);
  return attention;
}

void measure_cancelled(const ChangeTerms& terms,
                       const std::function<ScaledDifference<double>(size_t entry)>& difference,
                       std::span<double> changes) {
  std::vector<size_t> cancelled;
  std::vector<double> scales;
  for (size_t j = 0; j < changes.size(); ++j) {
    if (changes[j] < 0) cancelled.push_back(j);
  }
  Matrix differences(std::ssize(cancelled), terms.values.cols);
  for (size_t i = 0; i < cancelled.size(); ++i) {
    const ScaledDifference<double> by = difference(cancelled[i]);
    scales.push_back(by.scale * by.scale);
    combine(by, terms.values.row(static_cast<int64_t>(cancelled[i])), terms.output, differences.row(i));
  }
  const std::vector<double> norms = terms.space.squared_norms(differences);
  for (size_t i = 0; i < cancelled.size(); ++i) changes[cancelled[i]] = scales[i] * norms[i];
}

double squared_length(const ScaledDifference<double>& difference, VectorView x, VectorView o,
                      const ValueSpace& space) {
  std::vector<double> unscaled(x.size());
  combine(difference, x, o, unscaled);
  return difference.scale * difference.scale * space.squared_norm(unscaled);
}

}  // namespace kvbound::reference
