#include "exponential.hpp"

#include <algorithm>
#include <cassert>
#include <limits>

#include "exponential_reduction.hpp"

namespace kvbound::reference {
namespace {

using Constants = ExponentialConstants;

// Adds the exponentials of kLanes numbers to the sums, and writes them to `results` unless that is null.
template <class L>
[[gnu::always_inline]] inline void add_exponentials(const double* numbers, double shift,
                                                    typename L::Sums& sums, double* results) {
  for (size_t v = 0; v < L::kVectors; ++v) {
    typename L::Reals x;
    L::load(numbers + v * L::kWidth, x);
    x = x - shift;
    exponential<Constants, L>(x);
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
