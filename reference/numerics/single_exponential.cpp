#include "single_exponential.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvbound::reference {
namespace {

using SingleConstants = SingleExponentialConstants;

// Adding and subtracting this constant rounds a number below 2^22 to the nearest integer; after the addition,
// that integer is in the lowest bits of the sum.
constexpr float kSingleRounder = 0x1.8p23F;
constexpr uint32_t kSingleBias = 127;
constexpr int kSingleFractionBits = 23;
constexpr size_t kSingleSums = 16;  // partial sums, and numbers processed at a time, at every level

// numbers[i] <- exp(numbers[i] - shift), for as many numbers as a register holds.
template <size_t bytes>
[[gnu::always_inline]] inline void single_exponential(float* numbers, float shift) {
  using Singles [[gnu::vector_size(bytes)]] = float;
  using Bits [[gnu::vector_size(bytes)]] = uint32_t;
  Singles x;
  std::memcpy(&x, numbers, sizeof x);
  x = x - shift;
  // Both comparisons are false for NaN, so NaN is not clamped.
  x = x < SingleConstants::kLeast ? Singles{} + SingleConstants::kLeast : x;
  x = x > SingleConstants::kMost ? Singles{} + SingleConstants::kMost : x;
  const Singles shifted = x * SingleConstants::kLog2E + kSingleRounder;
  const Singles k = shifted - kSingleRounder;
  const Singles r = (x - k * SingleConstants::kLn2High) - k * SingleConstants::kLn2Low;
  constexpr size_t kTerms = SingleConstants::kCoefficients.size();
  Singles q = Singles{} + SingleConstants::kCoefficients.back();
#pragma GCC unroll 8
  for (size_t i = 1; i < kTerms; ++i) q = q * r + SingleConstants::kCoefficients[kTerms - 1 - i];
  const Singles fraction = 1.0F + (r + r * r * q);
  // k = k1 + k2, both in the range of normal exponents.
  const Bits power = (Bits)shifted - (std::bit_cast<uint32_t>(kSingleRounder) - 256);
  const Bits power1 = power >> 1;
  const Bits power2 = power - power1;
  const Singles scale1 = (Singles)((power1 - (128 - kSingleBias)) << kSingleFractionBits);
  const Singles scale2 = (Singles)((power2 - (128 - kSingleBias)) << kSingleFractionBits);
  x = fraction * scale1 * scale2;
  std::memcpy(numbers, &x, sizeof x);
}

// The exponentials of kSingleSums numbers, added to the sums.
template <size_t bytes>
[[gnu::always_inline]] inline void add_single_exponentials(float* numbers, float shift, double* sums) {
  for (size_t i = 0; i < kSingleSums; i += bytes / sizeof(float))
    single_exponential<bytes>(numbers + i, shift);
  for (size_t i = 0; i < kSingleSums; ++i) sums[i] += double{numbers[i]};
}

}  // namespace

double exponentiate(std::span<float> numbers, float shift, InstructionSet level) {
  std::array<double, kSingleSums> sums{};
  run_at(
      level, [&](auto lanes) __attribute__((always_inline)) {
        constexpr size_t kBytes = decltype(lanes)::kWidth * sizeof(double);
        std::array<double, kSingleSums> own{};
        const size_t whole = numbers.size() / kSingleSums * kSingleSums;
        for (size_t i = 0; i < whole; i += kSingleSums) {
          add_single_exponentials<kBytes>(numbers.data() + i, shift, own.data());
        }
        if (whole < numbers.size()) {
          std::array<float, kSingleSums> rest;  // padded with -infinity, whose exponential is 0
          rest.fill(-std::numeric_limits<float>::infinity());
          std::ranges::copy(numbers.subspan(whole), rest.begin());
          add_single_exponentials<kBytes>(rest.data(), shift, own.data());
          std::copy_n(rest.begin(), numbers.size() - whole, numbers.begin() + static_cast<int64_t>(whole));
        }
        sums = own;
      });
  for (size_t half = kSingleSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums.front();
}

}  // namespace kvbound::reference
