// What tests of the exponential functions of both precisions share.
#pragma once

#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/numerics/instruction_set.hpp>

#include "oracle.hpp"

namespace kvbound::test {

inline std::vector<reference::InstructionSet> available_levels() {
  std::vector<reference::InstructionSet> levels;
  for (const reference::InstructionSet level : reference::kInstructionSets) {
    if (reference::is_available(level)) levels.push_back(level);
  }
  return levels;
}

/// The numbers that the derivation of an exponential function's bound rests on, computed from its constants.
struct ExponentialTerms {
  oracle::Real most_k;    ///< the largest multiple of ln 2
  oracle::Real r;         ///< bounds |r|
  oracle::Real q;         ///< bounds the polynomial Q
  oracle::Real q_error;   ///< rounding error of Q, in unit roundoffs
  oracle::Real left_out;  ///< the terms behind the polynomial's last, in unit roundoffs
};

/// Expects that the constants are rounded once.
///
/// u  unit roundoff of their precision
template <class Constants>
ExponentialTerms exponential_terms(const oracle::Real& u) {
  using oracle::Real;
  constexpr int kDegree = Constants::kDegree;
  const Real ln2 = log(Real(2));
  EXPECT_LE(abs(Constants::kLog2E * ln2 - 1), u);
  ExponentialTerms terms{ceil(-Constants::kLeast / ln2), {}, 0, 0, {}};
  // |r| <= ln 2 times 1/2, plus the error of x log2 e; rounding to an integer is exact.
  const Real r = terms.r = ln2 * (Real(1) / 2 + 2 * u * terms.most_k) + u;
  EXPECT_LT(r, Real("0.3466"));
  EXPECT_GT(exp(-r), Real("0.707"));
  // The polynomial: its truncation, and Horner's rule, in which r^(i-2)/i! undergoes its own rounding, i - 2
  // products, and i - 2 sums, plus one for all but the last term.
  Real term = 1;
  for (int i = 2; i <= kDegree; ++i) {
    term /= i;  // r^(i-2)/i!
    EXPECT_LE(abs(Constants::kCoefficients[static_cast<size_t>(i) - 2] * pow(r, i - 2) / term - 1), u);
    terms.q += term;
    terms.q_error += (i == 2 ? 1 : 2 * (i - 2) + (i < kDegree ? 2 : 1)) * term;
    term *= r;
  }
  terms.left_out = term * r * r / (kDegree + 1) / (1 - r / (kDegree + 2)) / u;
  EXPECT_LT(r + r * r * terms.q, Real(1) / 2);
  return terms;
}

}  // namespace kvbound::test
