#include "bounded.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

namespace kvbound::oracle {
namespace {

const Real kUnitRoundoff = ldexp(Real(1), -53);
const Real kEta = ldexp(Real(1), -1074);

Real carried_by_product(const Bounded& a, const Bounded& b) {
  return abs(a.value) * b.bound + abs(b.value) * a.bound + a.bound * b.bound;
}

std::vector<bool> marks(size_t size, Indices indices) {
  std::vector<bool> marked(size, false);
  for (const int64_t i : indices) marked[i] = true;
  return marked;
}

}  // namespace

bool is_ascending(Indices indices) {
  return std::ranges::adjacent_find(indices, std::greater_equal<>()) == indices.end();
}

Bounded rounded(const Real& value, const Real& carried, int roundings) {
  return {value, carried + roundings * (kUnitRoundoff * (abs(value) + carried) + kEta)};
}

Bounded exponential(const Real& value, const Real& argument_bound) {
  if (argument_bound > 1) throw std::domain_error("an exponential of what is hardly known");
  return rounded(value, value * argument_bound * (1 + argument_bound), 2);
}

Real gamma(int64_t k) { return k * kUnitRoundoff / (1 - k * kUnitRoundoff); }
Real unit_roundoff() { return kUnitRoundoff; }
Real oracle_precision() { return Real("1e-45"); }

Row exactly(VectorView numbers) { return {numbers.begin(), numbers.end()}; }
Rows exactly(MatrixView numbers) {
  Rows rows;
  for (int64_t i = 0; i < numbers.rows; ++i) rows.push_back(exactly(VectorView(numbers.row(i))));
  return rows;
}

Reals values_of(const Row& row) {
  Reals result;
  for (const Bounded& number : row) result.push_back(number.value);
  return result;
}

Bounded operator+(const Bounded& a, const Bounded& b) {
  return rounded(a.value + b.value, a.bound + b.bound);
}
Bounded operator-(const Bounded& a, const Bounded& b) {
  return rounded(a.value - b.value, a.bound + b.bound);
}
Bounded operator-(const Bounded& a) { return {-a.value, a.bound}; }
Bounded operator*(const Bounded& a, const Bounded& b) {
  return rounded(a.value * b.value, carried_by_product(a, b));
}
Bounded operator/(const Bounded& a, const Bounded& b) {
  const Real size = abs(b.value);
  if (!(size > b.bound)) throw std::domain_error("a quotient whose divisor may be 0");
  return rounded(a.value / b.value, (abs(a.value) * b.bound + size * a.bound) / (size * (size - b.bound)));
}
Bounded abs(const Bounded& a) { return {abs(a.value), a.bound}; }

Bounded exp(const Bounded& a) { return exponential(exp(a.value), a.bound); }
// |ln(x + d) - ln(x)| <= |d| / (x - |d|).
Bounded log(const Bounded& a) {
  if (!(a.value > a.bound)) throw std::domain_error("the logarithm of what may be 0");
  return rounded(log(a.value), a.bound / (a.value - a.bound), 2);
}
// |sqrt(x + d) - sqrt(x)| = |d| / (sqrt(x + d) + sqrt(x)) <= |d| / sqrt(x).
Bounded sqrt(const Bounded& a) {
  if (a.value == 0) return rounded(Real(0), sqrt(a.bound));
  const Real value = sqrt(a.value);
  return rounded(value, a.bound / value);
}

// n - 1 additions: gamma_{n-1} times the absolute values of the terms as they are computed.
Bounded sum(const Row& terms) {
  Bounded total;
  Real sizes = 0;
  for (const Bounded& term : terms) {
    total.value += term.value;
    total.bound += term.bound;
    sizes += abs(term.value) + term.bound;
  }
  if (!terms.empty()) total.bound += gamma(std::ssize(terms) - 1) * sizes;
  return total;
}

// n products and n - 1 additions: each term passes through at most n roundings; each product may underflow
// once.
Bounded dot(const Row& a, const Row& b) {
  if (a.size() != b.size()) throw std::invalid_argument("a dot product of different lengths");
  Bounded total;
  Real sizes = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const Real product = a[i].value * b[i].value;
    const Real carried = carried_by_product(a[i], b[i]);
    total.value += product;
    total.bound += carried + kEta;
    sizes += abs(product) + carried + kEta;
  }
  total.bound += gamma(std::ssize(a)) * sizes;
  return total;
}

Real sum(const Reals& terms) { return std::accumulate(terms.begin(), terms.end(), Real(0)); }

Real dot(const Reals& a, const Reals& b) {
  if (a.size() != b.size()) throw std::invalid_argument("a dot product of different lengths");
  return std::inner_product(a.begin(), a.end(), b.begin(), Real(0));
}

template <class Number>
RowOf<Number> at(const RowOf<Number>& row, Indices indices) {
  RowOf<Number> result;
  for (const int64_t i : indices) result.push_back(row.at(i));
  return result;
}

template <class Number>
RowOf<Number> outside(const RowOf<Number>& row, Indices indices) {
  const std::vector<bool> marked = marks(row.size(), indices);
  RowOf<Number> result;
  for (size_t i = 0; i < row.size(); ++i) {
    if (!marked[i]) result.push_back(row[i]);
  }
  return result;
}

template <class Number>
RowOf<Number> column(const RowsOf<Number>& rows, size_t index) {
  RowOf<Number> result;
  for (const RowOf<Number>& row : rows) result.push_back(row[index]);
  return result;
}

template <class Number>
RowOf<Number> weighted_sum(const RowOf<Number>& weights, const RowsOf<Number>& rows) {
  RowOf<Number> result;
  if (rows.empty()) return result;
  for (size_t c = 0; c < rows.front().size(); ++c) result.push_back(dot(weights, column(rows, c)));
  return result;
}

template <class Number>
RowOf<Number> mean(const RowsOf<Number>& rows) {
  const Number count = static_cast<double>(rows.size());
  RowOf<Number> result;
  for (size_t c = 0; c < rows.front().size(); ++c) result.push_back(sum(column(rows, c)) / count);
  return result;
}

template Reals at(const Reals&, Indices);
template Row at(const Row&, Indices);
template Rows at(const Rows&, Indices);
template Reals outside(const Reals&, Indices);
template Row outside(const Row&, Indices);
template Reals column(const RowsOf<Real>&, size_t);
template Row column(const Rows&, size_t);
template Reals weighted_sum(const Reals&, const RowsOf<Real>&);
template Row weighted_sum(const Row&, const Rows&);
template Reals mean(const RowsOf<Real>&);
template Row mean(const Rows&);

}  // namespace kvbound::oracle
