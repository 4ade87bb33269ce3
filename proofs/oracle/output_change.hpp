// One query's attention over a cache, and the changes of its output when the cache changes, in 50 digits.
//
// Letters as in proofs/obcache.md: A attention weights, z logits, v
// values in the chosen space (v or v W^O), o the output, p an entry.
#pragma once

#include <kvbound/reference/eviction/obcache.hpp>

#include "exact.hpp"

namespace kvbound::oracle {

/// A number with the sum of the absolute values of the terms that it adds up, to which
/// rounding errors are relative.
struct Measured {
  Measured() = default;
  Measured(Real number) : value(std::move(number)), terms(abs(value)) {}
  Measured(Real value_, Real terms_) : value(std::move(value_)), terms(std::move(terms_)) {}

  Measured& operator+=(const Measured& other);

  Real value = 0;
  Real terms = 0;
};
Measured operator*(const Measured& a, const Measured& b);

}  // namespace kvbound::oracle

namespace kvbound::exact {

using oracle::Measured;
using Vectors = std::vector<Reals>;

Vectors vectors(MatrixView rows);
/// x a + y b
template <class Number>
std::vector<Number> combination(const Real& x, const std::vector<Number>& a, const Real& y,
                                const std::vector<Number>& b);
template <class Number>
requires(!std::is_integral_v<Number>) std::vector<Number> difference(const std::vector<Number>& a,
                                                                     const std::vector<Number>& b) {
  return combination(1, a, -1, b);
}
Reals difference(const Reals& a, const Reals& b);  // most time of theorems on merging goes into these
/// x a
template <class Number>
std::vector<Number> scaled(const Real& x, const std::vector<Number>& a) {
  return combination(x, a, 0, a);
}
template <class Number>
Number squared(const std::vector<Number>& vector);

/// One query, the entries that it sees, and its attention. Values are Real, or Measured.
template <class Number>
struct QueryOf {
  QueryOf(Reals logits, std::vector<std::vector<Number>> values);

  size_t entries() const { return logits.size(); }
  /// 1 - A_p, as the sum of the others' weights
  Real rest(size_t entry) const;
  /// v_p - o
  std::vector<Number> pull(size_t entry) const { return difference(values[entry], output); }
  /// An upper bound of the squared length of a difference of values or outputs.
  Real squared_terms() const { return 4 * static_cast<Real>(output.size()) * size * size; }

  Reals logits;
  std::vector<std::vector<Number>> values;
  Reals attention;             ///< A
  std::vector<Number> output;  ///< o
  /// The largest |v_pc|, an upper bound of the sum of absolute terms of each element of the output.
  Real size;
};
using Query = QueryOf<Real>;

/// The query after entries were removed from the cache; at least one entry must remain.
template <class Number>
QueryOf<Number> without(const QueryOf<Number>& query, IndexSet removed);
/// The query with k_p and v_p shrunk to (1 - key) k_p and (1 - value) v_p.
Query shrunk(const Query& query, size_t entry, const Real& key, const Real& value);
/// The output over the other entries alone; zeros if there are none.
template <class Number>
std::vector<Number> output_of_others(const QueryOf<Number>& query, size_t entry);

/// The entry's weight at logit 0 instead of z_p, with the same denominator: r = A_p exp(-z_p) = exp(-LSE)
template <class Number>
Real slot_weight(const QueryOf<Number>& query, size_t entry);

/// The vectors whose squared lengths are the scores of reference/eviction/obcache.hpp, in closed forms that
/// do not cancel as A_p -> 1. For Change::exact the cache must have other entries.
template <class Number>
std::vector<Number> change_vector(reference::Change change, const QueryOf<Number>& query, size_t entry);
template <class Number>
Number score(reference::Change change, const QueryOf<Number>& query, size_t entry) {
  return squared(change_vector(change, query, entry));
}

}  // namespace kvbound::exact
