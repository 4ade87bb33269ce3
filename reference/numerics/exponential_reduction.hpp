// The exponential function of vectors in either precision: exp x = 2^k exp r, |r| < 0.3466. What results are
// off by is derived in exponential.hpp and single_exponential.hpp.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace kvbound::reference {

/// 1/2!, 1/3!, ..., 1/degree!, each rounded once.
template <class Real, int degree>
constexpr std::array<Real, degree - 1> inverse_factorials() {
  std::array<Real, degree - 1> inverses{};
  double factorial = 1;
  for (size_t i = 2; i <= degree; ++i)
    inverses[i - 2] = static_cast<Real>(1 / (factorial *= static_cast<double>(i)));
  return inverses;
}

/// x <- exp(x) in every lane, by + - * and integer operations alone.
///
/// Constants  kLog2E; kLn2High + kLn2Low = ln 2; kLeast and kMost, beyond which the result is 0 and infinity;
///            kCoefficients, those of the polynomial
/// L          Reals, a vector of such numbers, and Bits, of unsigned integers of the same size
template <class Constants, class L>
[[gnu::always_inline]] inline void exponential(typename L::Reals& x) {
  using Real = std::remove_const_t<decltype(Constants::kLog2E)>;
  using Word = std::conditional_t<sizeof(Real) == sizeof(uint64_t), uint64_t, uint32_t>;
  using Reals = typename L::Reals;
  using Bits = typename L::Bits;
  constexpr int kFractionBits = std::numeric_limits<Real>::digits - 1;
  constexpr Word kHalf = std::numeric_limits<Real>::max_exponent, kBias = kHalf - 1;
  // Adding and subtracting this constant rounds a number to the nearest integer; after the addition, that
  // integer is in the lowest bits of the sum.
  constexpr Real kRounder = Real{1.5} * (Word{1} << kFractionBits);
  // Both comparisons are false for NaN, so NaN is not clamped.
  x = x < Constants::kLeast ? Reals{} + Constants::kLeast : x;
  x = x > Constants::kMost ? Reals{} + Constants::kMost : x;
  const Reals shifted = x * Constants::kLog2E + kRounder;
  const Reals k = shifted - kRounder;
  const Reals r = (x - k * Constants::kLn2High) - k * Constants::kLn2Low;
  constexpr size_t kTerms = Constants::kCoefficients.size();
  Reals q = Reals{} + Constants::kCoefficients.back();
#pragma GCC unroll 16
  for (size_t i = 1; i < kTerms; ++i) q = q * r + Constants::kCoefficients[kTerms - 1 - i];
  const Reals fraction = Real{1} + (r + r * r * q);
  // k = k1 + k2, both in the range of normal exponents. The shift is of an unsigned number (k + 2 kHalf > 0),
  // because not every instruction-set level has a signed 64-bit shift.
  const Bits power = (Bits)shifted - (std::bit_cast<Word>(kRounder) - 2 * kHalf);
  const Bits power1 = power >> 1;
  const Bits power2 = power - power1;
  const Reals scale1 = (Reals)((power1 - (kHalf - kBias)) << kFractionBits);
  const Reals scale2 = (Reals)((power2 - (kHalf - kBias)) << kFractionBits);
  x = fraction * scale1 * scale2;
}

}  // namespace kvbound::reference
