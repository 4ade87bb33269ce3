// How far rounding can take exponentials, their sum and the weights of a softmax: what all bounds on attention are made of.
//
// Derived in reference/bounds/error_bounds.md, "The model" and "Softmax". Not a public header: error_bounds.hpp and
// obcache_errors.hpp are.
#pragma once

#include <cstdint>
#include <span>

#include "error_bounds.hpp"

namespace kvbound::reference::rounding {

/// No bound at all, yet a number, so that 0 times it is 0.
inline constexpr double kUnbounded = 1e200;

/// Both sides round: the tested implementation and the double reference.
double unit(const Arithmetic& arithmetic);
double exponential(const Arithmetic& arithmetic);
/// gamma_k = k u / (1 - k u), infinity where that is no bound.
double gamma(double count, const Arithmetic& arithmetic);
/// What the double reference adds where the tested implementation's accumulation depth is small: its own may be as many as there are terms.
double reference_error(int64_t terms);
/// No less than e^x - 1, x >= 0; infinity where e^x is past counting.
double growth(double x);

/// The accumulation depth of a sum over tokens.
double accumulation_depth(const Arithmetic& arithmetic, int64_t terms);
double rescalings(const Arithmetic& arithmetic, int64_t tokens);
/// A sum of `terms` products of two stored numbers each, relative to the sum of their absolute values: a product and the
/// additions are rounded, and what `further` says.
double product_error(int64_t terms, int64_t further, const Arithmetic& arithmetic);

/// sum_c |x_c|
double absolute_sum(VectorView row);

/// What a softmax over one row of logits may be off by.
struct SoftmaxErrors {
  double log_sum_exp = 0;  ///< the value
  double growth = 0;       ///< G = sum_l A_l (e^T_l - 1)
  double largest = 0;      ///< of the |logits|
};

/// exponents  on entry the errors of the logits themselves, then T: how far each exponential may be off, as a logarithm
SoftmaxErrors softmax_errors(VectorView logits, std::span<double> exponents, const Arithmetic& arithmetic);

double weight_of(double logit, const SoftmaxErrors& softmax);

/// How far the errors of all logits may take weight j, as a share of it: nowhere if it is the only one.
double softmax_share(double weight, double exponent, const SoftmaxErrors& softmax);

/// What the sum of a softmax's exponentials adds to the relative error of every weight.
double sum_error(int64_t tokens, double terms, const Arithmetic& arithmetic);

/// Of one weight: it may be off by this share of itself, and by what underflows.
double weight_error(double weight, double share, const Arithmetic& arithmetic);

/// Of the log-sum-exp itself.
double log_sum_exp_error(const SoftmaxErrors& errors, int64_t tokens, const Arithmetic& arithmetic);

}  // namespace kvbound::reference::rounding
