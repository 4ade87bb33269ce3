#include "single_exponential.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "exponential_reduction.hpp"

namespace kvbound::reference {
namespace {

constexpr size_t kSingleSums = 16;  // partial sums, and numbers processed at a time, at every level

// As many numbers as a register holds.
template <size_t bytes>
struct Singles {
  using Reals [[gnu::vector_size(bytes)]] = float;
  using Bits [[gnu::vector_size(bytes)]] = uint32_t;
};

// numbers[i] <- exp(numbers[i] - shift)
template <size_t bytes>
[[gnu::always_inline]] inline void single_exponential(float* numbers, float shift) {
  typename Singles<bytes>::Reals x;
  std::memcpy(&x, numbers, sizeof x);
  x = x - shift;
  exponential<SingleExponentialConstants, Singles<bytes>>(x);
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
