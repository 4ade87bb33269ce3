// The exponential function in single precision on many numbers at once, with the same bits on every machine.
#pragma once

#include <span>

#include "exponential_reduction.hpp"
#include "instruction_set.hpp"

namespace kvbound::reference {

/// Exponentials in place, in single precision, and their sum in double.
///
///     numbers[i] <- exp(numbers[i] - shift);  returns sum_i numbers[i]
///
/// numbers  [n]; -infinity gives 0, NaN stays NaN; above 88.722839 + shift gives infinity
/// shift    finite; the difference is rounded once. A softmax passes its largest logit
/// returns  the sum of the rounded exponentials, in an order that depends on n only; 0 for no numbers
///
/// With x the rounded difference, u = 2^-24 and eta = 2^-149, each result is off by at most
///
///     |fl(exp x) - exp x| <= 1.9 u exp x + eta/2        (eta/2 only where the result is subnormal)
///
/// The derivation is that of exponential.hpp with other constants: k has 8 bits and ln2_high is a multiple of
/// 2^-15, so that k ln2_high, and x - k ln2_high, a multiple of 2^-25 below 1/2, are exact; the polynomial
/// has degree 7, and the terms left out are below 0.1 u.
///
/// level    available on this machine
double exponentiate(std::span<float> numbers, float shift, InstructionSet level = instruction_set());

/// The constants from which the error bound above is derived.
struct SingleExponentialConstants {
  static constexpr float kLog2E = 0x1.715476p+0F;    ///< log2 e, rounded
  static constexpr float kLn2High = 0x1.62e4p-1F;    ///< ln 2, rounded to a multiple of 2^-15
  static constexpr float kLn2Low = 0x1.7f7d1cp-20F;  ///< ln 2 - kLn2High, rounded
  static constexpr float kLeast = -104, kMost = 89;  ///< below: 0; above: infinity
  static constexpr int kDegree = 7;                  ///< degree of the polynomial
  static constexpr auto kCoefficients = inverse_factorials<float, kDegree>();
};

}  // namespace kvbound::reference
