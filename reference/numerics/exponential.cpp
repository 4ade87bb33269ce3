#include "exponential.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

namespace kvbound::reference {
namespace {

using Constants = ExponentialConstants;

// Adding and subtracting this constant rounds a number below 2^51 to the nearest integer; after the addition,
// that integer is in the lowest bits of the sum.
constexpr double kRounder = 0x1.8p52;
constexpr uint64_t kExponentBias = 1023;
constexpr int kFractionBits = 52;

// x <- exp(x) in every lane.
template <class L>
[[gnu::always_inline]] inline void exponential(typename L::Reals& x) {
  using Reals = typename L::Reals;
  using Bits = typename L::Bits;
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
  const Reals fraction = 1.0 + (r + r * r * q);
  // k = k1 + k2, both in the range of normal exponents. The shift is of an unsigned number (k + 2048 > 0),
  // because not every instruction-set level has a signed 64-bit shift.
  const Bits power = (Bits)shifted - (std::bit_cast<uint64_t>(kRounder) - 2048);
  const Bits power1 = power >> 1;
  const Bits power2 = power - power1;
  const Reals scale1 = (Reals)((power1 - (1024 - kExponentBias)) << kFractionBits);
  const Reals scale2 = (Reals)((power2 - (1024 - kExponentBias)) << kFractionBits);
  x = fraction * scale1 * scale2;
}

// Adds the exponentials of kLanes numbers to the sums, and writes them to `results` unless that is null.
template <class L>
[[gnu::always_inline]] inline void add_exponentials(const double* numbers, double shift,
                                                    typename L::Sums& sums, double* results) {
  for (size_t v = 0; v < L::kVectors; ++v) {
    typename L::Reals x;
    L::load(numbers + v * L::kWidth, x);
    x = x - shift;
    exponential<L>(x);
    sums.parts[v] += x;
    if (results) L::store(x, results + v * L::kWidth);
  }
}

// results: null if only the sum is wanted.
double exponentials(VectorView numbers, double shift, double* results, InstructionSet level) {
  double sum = 0;
  run_at(
      level, [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Sums sums;
        const size_t whole = numbers.size() / kLanes * kLanes;
        for (size_t i = 0; i < whole; i += kLanes) {
          add_exponentials<L>(numbers.data() + i, shift, sums, results ? results + i : nullptr);
        }
        if (whole < numbers.size()) {
          double rest[kLanes];  // padded with -infinity, whose exponential is 0
          std::fill(std::copy(numbers.begin() + static_cast<std::ptrdiff_t>(whole), numbers.end(), rest),
                    rest + kLanes, -std::numeric_limits<double>::infinity());
          add_exponentials<L>(rest, shift, sums, rest);
          if (results) std::copy(rest, rest + (numbers.size() - whole), results + whole);
        }
        sum = sums.total();
      });
  return sum;
}

}  // namespace

double exponentiate(std::span<double> numbers, double shift, InstructionSet level) {
  return exponentials(numbers, shift, numbers.data(), level);
}

double exponentiate(VectorView numbers, double shift, std::span<double> results, InstructionSet level) {
  assert(numbers.size() == results.size());
  return exponentials(numbers, shift, results.data(), level);
}

double exponential_sum(VectorView numbers, double shift, InstructionSet level) {
  return exponentials(numbers, shift, nullptr, level);
}

}  // namespace kvbound::reference
