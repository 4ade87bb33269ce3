// Arithmetic whose every operation is off by as much as the model of reference/bounds/error_bounds.md allows, in a direction that
// the test chooses: the worst that a tested implementation can do, where float32 only shows what it happens to do.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/error_bounds.hpp>

namespace kvbound::test {

/// One operation after the other, all rounded the same way until the direction is changed.
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

  /// Of + - x / and the square root: what the exact result becomes.
  double operator()(double exact) const {
    const double rounded = exact * (1 + direction_ * arithmetic_.unit);
    return direction_ < 0 && std::abs(rounded) < arithmetic_.smallest ? 0 : rounded;
  }
  double exp(double x) const { return std::exp(x) * (1 + direction_ * arithmetic_.exponential); }
  double log(double x) const { return std::log(x) * (1 + direction_ * arithmetic_.exponential); }
  /// A number as it is stored.
  double stored(double x) const {
    return x * (1 + direction_ * arithmetic_.input) + direction_ * arithmetic_.input_floor;
  }

  /// Every term passes through as many additions as there are terms: to 0 the first is added, too.
  double sum(std::span<const double> terms) const {
    double total = 0;
    for (const double term : terms) total = (*this)(total + term);
    return total;
  }
  /// A binary tree: 2^chain terms.
  double sum_in_pairs(std::span<const double> terms) const {
    if (terms.size() == 1) return terms.front();
    const size_t half = terms.size() / 2;
    return (*this)(sum_in_pairs(terms.first(half)) + sum_in_pairs(terms.subspan(half)));
  }
  /// sum_c a_c b_c; chain: of additions, -1 for as many as there are terms
  double dot(std::span<const double> a, std::span<const double> b, int64_t chain = -1) const {
    std::vector<double> terms;
    for (size_t c = 0; c < a.size(); ++c) terms.push_back((*this)(stored(a[c]) * stored(b[c])));
    const double total = chain < 0 ? sum(terms) : sum_in_pairs(terms);
    return total * (1 + direction_ * arithmetic_.tensor_sums);
  }

 private:
  reference::Arithmetic arithmetic_;
  double direction_ = 1;
};

/// A model in which nothing rounds but what the test then says.
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

// A sum is off by as much as can be if its first term is nearly all of it, and passes through all additions.
inline constexpr double kSmall = 1e-9;

inline Matrix led(int64_t rows, int64_t cols, double number) {
  Matrix matrix = filled(rows, cols, kSmall * number);
  matrix(0, 0) = number;
  return matrix;
}

// Attained, and at most `slack` times as much is allowed.
inline void expect_tight(double attained, double bound, double slack, const std::string& what = "") {
  EXPECT_GT(attained, 0) << what;
  EXPECT_LE(attained, bound) << what;
  EXPECT_GE(attained * slack, bound) << what;
}

}  // namespace kvbound::test
