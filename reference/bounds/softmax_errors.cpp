#include "softmax_errors.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "long_sums.hpp"

namespace kvbound::reference::rounding {
namespace {

constexpr double kDoubleUnit = 0x1p-53;
// Above this exponent e^x counts as infinity. A weight that is 0 in double precision (below e^-745) then
// stays below e^-145 < 1e-62 for every covered error of its logit.
constexpr double kMostExponent = 600;
constexpr double kLostWeight = 1e-62;

double longest(int64_t depth, int64_t terms) {
  return static_cast<double>(depth < 0 ? terms : std::min(depth, terms));
}

// What additions, `changes` rescalings and three more roundings take from a sum over tokens, as a share of
// the sum of its terms' absolute values. No running sum is larger than that, nor the range of running sums:
// error_bounds.md, "Long sums".
double sum_share(int64_t tokens, double changes, const Arithmetic& arithmetic) {
  if (is_long(arithmetic, tokens)) {
    return LongSums(tokens, rescalings(arithmetic, tokens), arithmetic).of_weights() + gamma(3, arithmetic);
  }
  return gamma(accumulation_depth(arithmetic, tokens) + changes + 3, arithmetic) + reference_error(tokens);
}

}  // namespace

double unit(const Arithmetic& arithmetic) { return arithmetic.unit + kDoubleUnit; }
double exponential(const Arithmetic& arithmetic) { return arithmetic.exponential + 4 * kDoubleUnit; }

double gamma(double count, const Arithmetic& arithmetic) {
  const double product = count * unit(arithmetic);
  return product < 1 ? product / (1 - product) : kInfinity;
}

double reference_error(int64_t terms) { return 1.01 * static_cast<double>(terms) * kDoubleUnit; }

// e^x - 1 <= x + x^2 for 0 <= x <= 1
double growth(double x) {
  if (x <= 1) return x + x * x;
  return x <= kMostExponent ? std::expm1(x) : kInfinity;
}

double product_error(int64_t terms, int64_t further, const Arithmetic& arithmetic) {
  const double roundings = longest(arithmetic.product_depth, terms) + 1 + static_cast<double>(further);
  const double adding = gamma(roundings, arithmetic) + reference_error(terms);
  if (!(adding < kInfinity)) return kInfinity;  // the formula below would be NaN for arithmetic.input = 0
  const double rounding = arithmetic.tensor_share() + (1 + arithmetic.tensor_share()) * adding;
  return rounding + (1 + rounding) * arithmetic.input * (2 + arithmetic.input);
}

double accumulation_depth(const Arithmetic& arithmetic, int64_t terms) {
  return longest(arithmetic.accumulation_depth, terms);
}

double length_depth(const Arithmetic& arithmetic, int64_t terms) {
  return longest(arithmetic.length_depth, terms);
}

double rescalings(const Arithmetic& arithmetic, int64_t tokens) {
  return static_cast<double>(arithmetic.rescalings < 0 ? (tokens + 15) / 16 : arithmetic.rescalings);
}

double absolute_sum(VectorView row) {
  double sum = 0;
  for (const double x : row) sum += std::abs(x);
  return sum;
}

double weight_of(double logit, const SoftmaxErrors& softmax) { return std::exp(logit - softmax.log_sum_exp); }

SoftmaxErrors softmax_errors(VectorView logits, std::span<double> exponents, const Arithmetic& arithmetic) {
  SoftmaxErrors result{log_sum_exp(logits), 0, max_abs(logits)};
  const auto tokens = std::ssize(logits);
  const double changes = rescalings(arithmetic, tokens);
  const double u = unit(arithmetic), e = exponential(arithmetic);
  const double most = max_abs(exponents);
  const double shared = 4 * u * most + e + u + changes * (e + 2 * u) +
                        (changes > 0 ? 4 * u * result.largest : 0) +
                        2 * u * (result.largest + std::log(static_cast<double>(tokens)));
  for (size_t j = 0; j < logits.size(); ++j) {
    exponents[j] += shared + 2 * u * std::abs(logits[j]);
    const double weight = weight_of(logits[j], result);
    if (exponents[j] > kMostExponent) result.growth = kInfinity;
    result.growth += weight > 0 ? weight * growth(exponents[j]) : 0;
  }
  result.growth += static_cast<double>(tokens) * kLostWeight;
  return result;
}

double softmax_share(double weight, double exponent, const SoftmaxErrors& softmax) {
  const double own = growth(exponent);
  if (!(softmax.growth < kInfinity) || own == kInfinity) return kInfinity;
  const double others = std::max(0.0, softmax.growth - weight * own) + 4 * kDoubleUnit * softmax.growth;
  const double spread = others * (1 + own) + std::max(0.0, 1 - weight) * own;
  return spread < 0.5 ? spread / (1 - spread) : std::expm1(exponent + softmax.growth);
}

// The contribution of the softmax's denominator to the relative error of every weight: its own rounding, a
// division, and exponentials that underflow, each less than `smallest` beside a sum of at least 1.
double sum_error(int64_t tokens, const Arithmetic& arithmetic) {
  return sum_share(tokens, 0, arithmetic) + 2 * static_cast<double>(tokens) * arithmetic.smallest;
}

double component_error(int64_t tokens, const Arithmetic& arithmetic) {
  return sum_share(tokens, rescalings(arithmetic, tokens), arithmetic) + arithmetic.tensor_weighted_sums +
         arithmetic.input;
}

double weighted_value_error(int64_t tokens, const Arithmetic& arithmetic) {
  return component_error(tokens, arithmetic) + 2 * (arithmetic.weights + arithmetic.partials);
}

double lost_output(double floor, int64_t tokens, double absolute, double most) {
  return floor > 0 ? floor * (absolute + static_cast<double>(tokens) * most + 1) : 0;
}

double weight_error(double weight, double share, const Arithmetic& arithmetic) {
  if (!(share < kUnbounded)) return kUnbounded;
  return weight * share + 2 * arithmetic.smallest + kLostWeight;
}

double score_weight_error(double weight, double share, int64_t tokens, const Arithmetic& arithmetic) {
  const double error = weight_error(weight, share, arithmetic), most = weight + error;
  return error + growth(2 * arithmetic.score_weights) * most +
         arithmetic.score_weights_floor * (1 + static_cast<double>(tokens) * most);
}

double log_sum_exp_error(const SoftmaxErrors& errors, int64_t tokens, double sum,
                         const Arithmetic& arithmetic) {
  const double log_tokens = std::log(static_cast<double>(tokens));
  return errors.growth + sum + exponential(arithmetic) * log_tokens +
         3 * unit(arithmetic) * (errors.largest + log_tokens);
}

double log_sum_exp_error(const SoftmaxErrors& errors, int64_t tokens, const Arithmetic& arithmetic) {
  return log_sum_exp_error(errors, tokens, sum_error(tokens, arithmetic), arithmetic);
}

}  // namespace kvbound::reference::rounding
