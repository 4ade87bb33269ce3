#include "next_token.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/exponential.hpp>

namespace kvbound::sim {
namespace {

// d + exp(-d) - 1 >= 0. Below 2^-8 the terms would cancel: there by its series, whose first omitted term
// is below 2^-51 of the sum.
double excess(double d) {
  if (std::abs(d) >= 0x1p-8) return d + std::expm1(-d);
  double series = 0;
  for (int power = 8; power >= 3; --power) series = (1 - series) * d / power;
  return (1 - series) * d * d / 2;
}

// p (d + exp(-d) - 1), where exp(-d) may overflow although p exp(-d) = q does not.
double term(double log_p, double log_q) {
  const double d = log_p - log_q, p = std::exp(log_p);
  return std::abs(d) < 1 ? p * excess(d) : p * d - p + std::exp(log_q);
}

std::vector<double> finite(std::span<const float> logits) {
  if (!std::ranges::all_of(logits, [](float z) { return std::isfinite(z); }))
    throw NonFinite("a logit is not a finite number");
  return {logits.begin(), logits.end()};
}

}  // namespace

std::vector<double> log_probabilities(std::span<const float> logits) {
  std::vector<double> numbers = finite(logits);
  const double largest = std::ranges::max(numbers);
  const double normaliser = largest + std::log(reference::exponential_sum(numbers, largest));
  for (double& number : numbers) number -= normaliser;
  return numbers;
}

double negative_log_likelihood(std::span<const float> logits, int64_t token) {
  std::vector<double> others = finite(logits);
  const double own = others[token];
  others.erase(others.begin() + token);
  if (others.empty()) return 0;
  const double largest = std::ranges::max(others);
  if (largest <= own) return std::log1p(reference::exponential_sum(others, own));
  // ln(exp(own - largest) + sum_j exp(z_j - largest)), of which the sum is at least 1
  return largest - own + std::log(std::exp(own - largest) + reference::exponential_sum(others, largest));
}

double divergence(std::span<const double> log_p, std::span<const double> log_q) {
  double sum = 0;
  for (size_t i = 0; i < log_p.size(); ++i) sum += term(log_p[i], log_q[i]);
  return sum;
}

int64_t most_likely(std::span<const float> logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

}  // namespace kvbound::sim
