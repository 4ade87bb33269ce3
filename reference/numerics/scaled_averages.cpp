#include "scaled_averages.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "exponential.hpp"
#include "instruction_set.hpp"

namespace kvbound::reference {
namespace {

// A mantissa below this limit is moved into its exponent. While no mantissa is smaller, an exponential that
// underflows would not change a bit of its sum with a mantissa.
constexpr double kLeastMantissa = 0x1p-64;

// distances[j] = -|log_numbers[j] - exponents[j]|: the logarithm of the factor that rescales the smaller of
// the two to the exponent of the larger. Returns whether all new logarithms are finite.
bool negated_distances(VectorView log_numbers, const double* exponents, double* distances) {
  double poison = 0;
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Reals not_finite{};
        size_t j = 0;
        for (; j + L::kWidth <= log_numbers.size(); j += L::kWidth) {
          typename L::Reals number, exponent;
          L::load(log_numbers.data() + j, number);
          L::load(exponents + j, exponent);
          const typename L::Reals distance = number - exponent;
          L::store(distance > 0 ? -distance : distance, distances + j);
          not_finite += number - number;
        }
        double parts[L::kWidth];
        L::store(not_finite, parts);
        for (const double part : parts) poison += part;
        for (; j < log_numbers.size(); ++j) {
          distances[j] = -std::abs(log_numbers[j] - exponents[j]);
          poison += log_numbers[j] - log_numbers[j];
        }
      });
  return poison == 0;
}

// S' = a S + (1 - a) s, stored with the larger of both exponents; exponentials[j] is
// exp(-distance of the exponents). Returns the smallest new mantissa.
double add_numbers(double decay, VectorView log_numbers, const double* exponentials, double* exponents,
                   double* mantissas) {
  const double fresh = 1 - decay;
  double least = std::numeric_limits<double>::infinity();
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        using Reals = typename L::Reals;
        Reals smallest = Reals{} + least;
        size_t j = 0;
        for (; j + L::kWidth <= log_numbers.size(); j += L::kWidth) {
          Reals number, exponential, exponent, mantissa;
          L::load(log_numbers.data() + j, number);
          L::load(exponentials + j, exponential);
          L::load(exponents + j, exponent);
          L::load(mantissas + j, mantissa);
          const Reals past = decay * mantissa;
          mantissa = number > exponent ? past * exponential + fresh : past + fresh * exponential;
          smallest = mantissa < smallest ? mantissa : smallest;
          L::store(number > exponent ? number : exponent, exponents + j);
          L::store(mantissa, mantissas + j);
        }
        double parts[L::kWidth];
        L::store(smallest, parts);
        least = *std::min_element(parts, parts + L::kWidth);
        for (; j < log_numbers.size(); ++j) {
          const bool larger = log_numbers[j] > exponents[j];
          const double past = decay * mantissas[j];
          mantissas[j] = larger ? past * exponentials[j] + fresh : past + fresh * exponentials[j];
          exponents[j] = larger ? log_numbers[j] : exponents[j];
          least = std::min(least, mantissas[j]);
        }
      });
  return least;
}

}  // namespace

void ScaledAverages::append() {
  exponents.push_back(-std::numeric_limits<double>::infinity());
  mantissas.push_back(0);
}

bool decay_towards(VectorView log_numbers, double decay, ScaledAverages& averages,
                   std::span<double> scratch) {
  assert(log_numbers.size() <= averages.mantissas.size() && log_numbers.size() <= scratch.size());
  double* const exponents = averages.exponents.data();
  double* const mantissas = averages.mantissas.data();
  if (!negated_distances(log_numbers, exponents, scratch.data())) return false;
  if (decay == 0) {  // the past has no weight
    std::ranges::copy(log_numbers, exponents);
    std::fill_n(mantissas, log_numbers.size(), 1.0);
    return true;
  }
  exponentiate(scratch.first(log_numbers.size()), 0);
  if (add_numbers(decay, log_numbers, scratch.data(), exponents, mantissas) >= kLeastMantissa) return true;
  for (size_t j = 0; j < log_numbers.size(); ++j) {
    if (mantissas[j] >= kLeastMantissa) continue;
    exponents[j] += std::log(mantissas[j]);
    mantissas[j] = 1;
  }
  return true;
}

}  // namespace kvbound::reference
