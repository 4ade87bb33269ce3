// The exponential function on many numbers at once, with the same bits on every machine.
#pragma once

#include <cstdint>
#include <span>

#include <kvbound/reference/core/view.hpp>

#include "exponential_reduction.hpp"
#include "instruction_set.hpp"

namespace kvbound::reference {

/// Exponentials in place, and their sum.
///
///     numbers[i] <- exp(numbers[i] - shift);  returns sum_i exp(numbers[i] - shift)
///
/// numbers  [n]; -infinity gives 0, NaN stays NaN; above 709.7827128933840 + shift gives infinity
/// shift    finite; the difference is rounded once. A softmax passes its largest logit
/// returns  the sum, in an order that depends on n only; 0 for no numbers
///
/// With x the rounded difference, u = 2^-53 and eta = 2^-1074, each result is off by at most
///
///     |fl(exp x) - exp x| <= 1.8 u exp x + eta/2        (eta/2 only where the result is subnormal)
///
/// The reduction is exp x = 2^k exp r, r = x - k ln 2, with k the integer nearest to x
/// log2 e, so |r| < 0.3466:
///
///     r      k ln2_high has at most 53 bits, hence is exact; so is x - k ln2_high, a multiple of
///            2^-54 below 1/2. Rounding the subtraction of k ln2_low costs 2^-55, all else 2^-84: a
///            factor 1 +- 0.26 u of exp r
///     exp r  = 1 + (r + r^2 Q), Q = 1/2! + r/3! + ... + r^11/13! by Horner's rule. In units of u: the terms
///            left out are below 0.04; Q is off by 0.77, and r^2 Q by r^2 (0.77 + 2 Q) <= 0.23; adding r
///            costs 1/4 (the sum is below 1/2), adding 1 costs 1, or 1/2 below 1. So 1.52 where exp r >= 1,
///            and 1.02/exp r <= 1.45 where exp r > 0.707
///     2^k    as two powers of two, of which the first is exact, and the second
///            unless the result is subnormal
///
/// Every instruction-set level does the same + - * and integer operations without fused multiply-add, so the
/// results have the same bits at every level.
///
/// level    available on this machine
/// source   the reduction: Cody and Waite, Software Manual for the Elementary Functions (1980), chapter 6
double exponentiate(std::span<double> numbers, double shift, InstructionSet level = instruction_set());

/// The same results, bit for bit, written to other memory.
///
/// results  [n]; may be the same memory as `numbers`
double exponentiate(VectorView numbers, double shift, std::span<double> results,
                    InstructionSet level = instruction_set());

/// The same sum, bit for bit, without writing the exponentials.
///
///     sum_i exp(numbers[i] - shift)
double exponential_sum(VectorView numbers, double shift, InstructionSet level = instruction_set());

/// The constants from which the error bounds above are derived.
struct ExponentialConstants {
  static constexpr double kLog2E = 0x1.71547652b82fep+0;   ///< log2 e, rounded
  static constexpr double kLn2High = 0x1.62e42fefa38p-1;   ///< ln 2, cut to a multiple of 2^-42
  static constexpr double kLn2Low = 0x1.ef35793c7673p-45;  ///< ln 2 - kLn2High, rounded
  static constexpr double kLeast = -746, kMost = 710;      ///< below: 0; above: infinity
  static constexpr int kDegree = 13;                       ///< degree of the polynomial
  static constexpr auto kCoefficients = inverse_factorials<double, kDegree>();
};

}  // namespace kvbound::reference
