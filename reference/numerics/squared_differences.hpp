// Squared lengths of the scaled differences of many vectors from one vector, computed from inner products.
#pragma once

#include <cstddef>
#include <span>

#include <kvbound/reference/core/view.hpp>

#include "instruction_set.hpp"

namespace kvbound::reference {

/// The vector scale (x_factor x - origin_factor o) of a vector x and the common origin o.
///
/// Number  double, or a vector type of doubles: it has + - * /, and Number{} + 1.0 is 1 in every lane
template <class Number>
struct ScaledDifference {
  Number scale, x_factor, origin_factor;
};

/// A squared length below this share of its terms counts as cancelled. A length at the limit has 53 - 13 = 40
/// correct bits, minus the rounding errors of the inner product.
inline constexpr double kCancelledShare = 0x1p-13;

namespace detail {

// The squared lengths of kWidth differences from j on; -1 marks differences whose terms cancel.
template <class L, class Term>
[[gnu::always_inline]] inline void expand(VectorView first, double first_factor, VectorView second,
                                          VectorView squared_norms, double origin_norm, const Term& term,
                                          size_t j, std::span<double> products, typename L::Reals& least) {
  using Reals = typename L::Reals;
  Reals x, y, norm, product;
  L::load(&first[j], x);
  L::load(&second[j], y);
  L::load(&squared_norms[j], norm);
  L::load(&products[j], product);
  x *= first_factor;
  ScaledDifference<Reals> by;
  term(x, y, by);
  const Reals own = by.x_factor * by.x_factor * norm + by.origin_factor * by.origin_factor * origin_norm;
  const Reals distance = own - 2.0 * (by.x_factor * by.origin_factor) * product;
  const Reals measured = by.scale * by.scale * distance;
  const Reals result = distance < kCancelledShare * own ? Reals{} - 1.0 : measured;
  least = result < least ? result : least;
  L::store(result, &products[j]);
}

}  // namespace detail

/// Squared lengths of scaled differences, by || a x - b o ||^2 = a^2 |x|^2 - 2 a b x . o + b^2 |o|^2.
///
///     products[j] <- || scale_j (x_factor_j x_j - origin_factor_j o) ||^2
///
/// first, second  [n] numbers from which `term` computes the factors; those of `first` are
///                multiplied by first_factor
/// squared_norms  [n]: |x_j|^2
/// origin_norm    |o|^2
/// term           term(first, second, difference) writes a ScaledDifference of the numbers' type; declared
///                always_inline, because it is compiled for every instruction set
/// products       [n], in: x_j . o; out: the squared lengths, or -1 where the terms cancel to
///                less than kCancelledShare
/// returns        whether the terms of any length cancel
template <class Term>
bool squared_differences(VectorView first, double first_factor, VectorView second, VectorView squared_norms,
                         double origin_norm, const Term& term, std::span<double> products) {
  bool cancels = false;
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Reals least = {};
        size_t j = 0;
        for (; j + L::kWidth <= products.size(); j += L::kWidth) {
          detail::expand<L>(first, first_factor, second, squared_norms, origin_norm, term, j, products,
                            least);
        }
        for (size_t l = 0; l < L::kWidth; ++l) cancels |= least[l] < 0;
        Lanes<1>::Reals last = {};
        for (; j < products.size(); ++j) {
          detail::expand<Lanes<1>>(first, first_factor, second, squared_norms, origin_norm, term, j, products,
                                   last);
        }
        cancels |= last[0] < 0;
      });
  return cancels;
}

}  // namespace kvbound::reference
