// Numbers of 50 decimal digits, and such numbers with a bound on the error of their evaluation in double
// precision.
//
// A Bounded is the exact value of a quantity with an upper bound of the error of its evaluation in double
// precision. Bounds are derived, never tuned: every operation obeys fl(x op y) = (x op y)(1 + d) + e with |d|
// <= u = 2^-53 and |e| <= eta = 2^-1074 (only where a result may underflow), so
//
//     |fl(sum of n terms) - sum| <= gamma_{n-1} sum |terms|      in any order, with fused operations or
//     without, gamma_k = k u / (1 - k u),
//
// and errors of the operands are propagated to all orders (products of errors are not dropped). exp is
// assumed to be accurate to 2 u and eta, more than the error that reference/numerics/exponential.hpp
// guarantees; log to 1 ulp <= 2 u, as the C library guarantees.
#pragma once

#include <cassert>
#include <concepts>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <boost/multiprecision/mpfr.hpp>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::oracle {

/// 168 bits: every double converts exactly, exp(+-20000) neither overflows nor underflows.
using Real = boost::multiprecision::number<
    boost::multiprecision::mpfr_float_backend<50, boost::multiprecision::allocate_stack>,
    boost::multiprecision::et_off>;
/// Indices of entries, in any order.
using Indices = std::span<const int64_t>;
bool is_ascending(Indices indices);  ///< and none occurs twice

/// A set of entries. Functions that search it, or add up over it, rely on what is asserted here.
struct IndexSet : Indices {
  template <class... Arguments>
  requires std::constructible_from<Indices, Arguments...> IndexSet(Arguments&&... arguments)
      : Indices(std::forward<Arguments>(arguments)...) {
    assert(is_ascending(*this));
  }
};

/// gamma_k = k u / (1 - k u) for double precision.
Real gamma(int64_t k);

/// u = 2^-53
Real unit_roundoff();

/// The oracle's own precision, relative to the sum of the absolute terms that it adds up.
Real oracle_precision();

struct Bounded {
  Real value = 0;
  Real bound = 0;  ///< of |double evaluation - value|

  Bounded() = default;
  Bounded(double exact) : value(exact) {}  // an input, known exactly to both sides
  Bounded(Real value_, Real bound_) : value(std::move(value_)), bound(std::move(bound_)) {}
};
/// Numbers and rows of numbers: Real where a claim is judged, Bounded where an
/// evaluation in double precision is.
template <class Number>
using RowOf = std::vector<Number>;
template <class Number>
using RowsOf = std::vector<RowOf<Number>>;
using Row = RowOf<Bounded>;
using Rows = RowsOf<Bounded>;
using Reals = RowOf<Real>;

/// Inputs, known exactly to both sides: bound 0.
Row exactly(VectorView numbers);
Rows exactly(MatrixView numbers);
/// Without their bounds.
Reals values_of(const Row& row);

/// A value that its operands' errors change by at most `carried`, after `roundings` roundings.
Bounded rounded(const Real& value, const Real& carried, int roundings = 1);
/// value = exp(x), for an argument with an error of at most
/// d = argument_bound <= 1: |exp(x + d) - exp(x)| <= exp(x) (d + d^2).
Bounded exponential(const Real& value, const Real& argument_bound);

Bounded operator+(const Bounded& a, const Bounded& b);
Bounded operator-(const Bounded& a, const Bounded& b);
Bounded operator-(const Bounded& a);
Bounded operator*(const Bounded& a, const Bounded& b);
Bounded operator/(const Bounded& a, const Bounded& b);  ///< b must be away from 0 by more than its bound
Bounded abs(const Bounded& a);
Bounded exp(const Bounded& a);
Bounded log(const Bounded& a);
Bounded sqrt(const Bounded& a);
Bounded sum(const Row& terms);  ///< in any order
Real sum(const Reals& terms);
Bounded dot(const Row& a, const Row& b);  ///< in any order, fused or not
Real dot(const Reals& a, const Reals& b);

// ---- for either number

/// The entries at the indices, in their order, and the other entries, ascending.
template <class Number>
RowOf<Number> at(const RowOf<Number>& row, Indices indices);
template <class Number>
RowOf<Number> outside(const RowOf<Number>& row, Indices indices);
/// rows[:,index]
template <class Number>
RowOf<Number> column(const RowsOf<Number>& rows, size_t index);
/// sum_j weights_j rows_j
template <class Number>
RowOf<Number> weighted_sum(const RowOf<Number>& weights, const RowsOf<Number>& rows);
/// (1/n) sum_j rows_j
template <class Number>
RowOf<Number> mean(const RowsOf<Number>& rows);

}  // namespace kvbound::oracle
