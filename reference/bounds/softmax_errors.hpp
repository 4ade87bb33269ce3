// Rounding errors of exponentials, their sum and the weights of a softmax, on which all
// bounds on attention are based.
//
// Derived in reference/bounds/error_bounds.md, "The model" and "Softmax".
// Not a public header: include error_bounds.hpp or obcache_errors.hpp.
#pragma once

#include <cstdint>
#include <span>

#include "error_bounds.hpp"

namespace kvbound::reference::rounding {

/// Stands for "no bound", but is finite, so that 0 times it is 0.
inline constexpr double kUnbounded = 1e200;

/// Rounding errors of both the tested implementation and the double reference: of an
/// operation, and of an exponential.
double unit(const Arithmetic& arithmetic);
double exponential(const Arithmetic& arithmetic);
/// gamma_k = k u / (1 - k u); infinity for k u >= 1.
double gamma(double count, const Arithmetic& arithmetic);
/// The double reference's own error of a sum, to be added where the tested implementation's accumulation
/// depth may be smaller: the reference's depth may be the number of terms.
double reference_error(int64_t terms);
/// An upper bound of e^x - 1 for x >= 0; infinity where e^x counts as infinite.
double growth(double x);

/// The accumulation depth of a sum over tokens.
double accumulation_depth(const Arithmetic& arithmetic, int64_t terms);
/// The accumulation depth of an inner product in a score's space whose sums have `terms` terms together.
double length_depth(const Arithmetic& arithmetic, int64_t terms);
/// The number of rescalings of the partial sums of a sum over `tokens` tokens.
double rescalings(const Arithmetic& arithmetic, int64_t tokens);
/// The error of a sum of `terms` products of two stored numbers each, relative to the sum of their absolute
/// values, with `further` roundings beside those of a product and the additions.
double product_error(int64_t terms, int64_t further, const Arithmetic& arithmetic);

/// sum_c |x_c|
double absolute_sum(VectorView row);

/// The errors of a softmax over one row of logits.
struct SoftmaxErrors {
  double log_sum_exp = 0;  ///< the value
  double growth = 0;       ///< G = sum_l A_l (e^T_l - 1)
  double largest = 0;      ///< the largest |logit|
};

/// exponents  in: the errors of the logits; out: T, the error of each exponential as a logarithm
SoftmaxErrors softmax_errors(VectorView logits, std::span<double> exponents, const Arithmetic& arithmetic);

/// The exact softmax weight of a logit.
double weight_of(double logit, const SoftmaxErrors& softmax);

/// The relative error of one weight from the errors of all logits; 0 for a single token.
double softmax_share(double weight, double exponent, const SoftmaxErrors& softmax);

/// The contribution of the softmax's denominator to the relative error of every weight.
double sum_error(int64_t tokens, const Arithmetic& arithmetic);

/// The relative error of a product of a weight and a value on its way into an output,
/// without that of the weight.
double component_error(int64_t tokens, const Arithmetic& arithmetic);
/// The same with the rounding of the weight before the product.
double weighted_value_error(int64_t tokens, const Arithmetic& arithmetic);

/// What weights below the normal range of their type take from one number of an output.
///
/// floor           phi_w (1 + y)
/// absolute, most  of the values of all tokens: the sum and the largest of their absolute values
double lost_output(double floor, int64_t tokens, double absolute, double most);

/// The absolute error of one weight: `share` of itself, plus underflow.
double weight_error(double weight, double share, const Arithmetic& arithmetic);
/// The same of a weight as scores of a prompt take it, with its own rounding where the arithmetic has one,
/// and that of the others in the sum that divides it.
double score_weight_error(double weight, double share, int64_t tokens, const Arithmetic& arithmetic);

/// The error of the log-sum-exp.
///
/// sum  relative, of the sum of the exponentials; by default sum_error in any order
double log_sum_exp_error(const SoftmaxErrors& errors, int64_t tokens, double sum,
                         const Arithmetic& arithmetic);
double log_sum_exp_error(const SoftmaxErrors& errors, int64_t tokens, const Arithmetic& arithmetic);

}  // namespace kvbound::reference::rounding
