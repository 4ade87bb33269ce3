// Arithmetic whose every operation is off by as much as the model of reference/bounds/error_bounds.md
// allows, in a direction that the test chooses: the worst that an implementation can do, whereas float32
// shows only its own rounding.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/error_bounds.hpp>

namespace kvbound::test {

/// Performs operations one after the other, all rounded in the same direction until it is changed.
class Directed {
 public:
  explicit Directed(const reference::Arithmetic& arithmetic) : arithmetic_(arithmetic) {}

  Directed& up() { return towards(1); }
  Directed& down() { return towards(-1); }
  /// 1: away from 0; -1: towards 0; 0: exact
  Directed& towards(double direction) {
    direction_ = direction;
    return *this;
  }

  /// The rounded result of an addition, subtraction, product, quotient or square root
  /// whose exact result is given.
  double operator()(double exact) const {
    const double rounded = exact * (1 + direction_ * arithmetic_.unit);
    return direction_ < 0 && std::abs(rounded) < arithmetic_.smallest ? 0 : rounded;
  }
  double exp(double x) const { return std::exp(x) * (1 + direction_ * arithmetic_.exponential); }
  double log(double x) const { return std::log(x) * (1 + direction_ * arithmetic_.exponential); }
  /// The number after rounding to the storage type.
  double stored(double x) const {
    return x * (1 + direction_ * arithmetic_.input) + direction_ * arithmetic_.input_floor;
  }

  /// Sums from first to last, beginning with 0: n terms take n additions.
  double sum(std::span<const double> terms) const {
    double total = 0;
    for (const double term : terms) total = (*this)(total + term);
    return total;
  }
  /// Sums in a binary tree of 2^depth terms.
  double sum_in_pairs(std::span<const double> terms) const {
    if (terms.size() == 1) return terms.front();
    const size_t half = terms.size() / 2;
    return (*this)(sum_in_pairs(terms.first(half)) + sum_in_pairs(terms.subspan(half)));
  }
  /// sum_c a_c b_c, added from first to last if chain < 0, else in a binary tree
  double dot(std::span<const double> a, std::span<const double> b, int64_t chain = -1) const {
    std::vector<double> terms;
    for (size_t c = 0; c < a.size(); ++c) terms.push_back((*this)(stored(a[c]) * stored(b[c])));
    if (arithmetic_.tensor_chain > 1) return chained(terms);
    const double total = chain < 0 ? sum(terms) : sum_in_pairs(terms);
    return total * (1 + direction_ * arithmetic_.tensor_sums);
  }

 private:
  // Tensor cores' sums of 16 terms, each of which begins with the one before.
  double chained(std::span<const double> terms) const {
    constexpr size_t kTerms = 16;
    double total = 0, running = 0;
    for (size_t first = 0, step = 0; first < terms.size(); first += kTerms, ++step) {
      double sum = running, size = std::abs(running);
      for (const double term : terms.subspan(first, std::min(kTerms, terms.size() - first))) {
        sum += term;
        size += std::abs(term);
      }
      running = sum + direction_ * arithmetic_.tensor_sums * size;
      const bool last = (step + 1) % static_cast<size_t>(arithmetic_.tensor_chain) == 0;
      if (last) total += std::exchange(running, 0);
    }
    return total + running;
  }

  reference::Arithmetic arithmetic_;
  double direction_ = 1;
};

/// A model of exact arithmetic, for a test to add one kind of rounding to.
inline reference::Arithmetic nothing_rounds() {
  return {.unit = 0, .smallest = 1e-300, .exponential = 0, .rescalings = 0};
}

inline Matrix filled(int64_t rows, int64_t cols, double number) {
  Matrix matrix(rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (double& x : matrix.row(i)) x = number;
  }
  return matrix;
}

// A sum's error is largest if its first term is nearly the whole sum and passes through all additions.
inline constexpr double kSmall = 1e-9;

inline Matrix led(int64_t rows, int64_t cols, double number) {
  Matrix matrix = filled(rows, cols, kSmall * number);
  matrix(0, 0) = number;
  return matrix;
}

// Requires that the attained error is within the bound, and the bound within `slack`
// times the attained error.
inline void expect_tight(double attained, double bound, double slack, const std::string& what = "") {
  EXPECT_GT(attained, 0) << what;
  EXPECT_LE(attained, bound) << what;
  EXPECT_GE(attained * slack, bound) << what;
}

}  // namespace kvbound::test
