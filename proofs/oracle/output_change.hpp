// One query's attention over a cache, and the changes of its output when the cache changes, in 50 digits.
//
// Letters as in proofs/obcache.md: A attention weights, z logits, v
// values in the chosen space (v or v W^O), o the output, p an entry.
#pragma once

#include <kvbound/reference/eviction/obcache.hpp>

#include "exact.hpp"

namespace kvbound::exact {

using Vectors = std::vector<Reals>;

Vectors vectors(MatrixView rows);
Reals difference(const Reals& a, const Reals& b);
/// x a + y b
Reals combination(const Real& x, const Reals& a, const Real& y, const Reals& b);
/// x a
Reals scaled(const Real& x, const Reals& a);
Real squared(const Reals& vector);
inline Real inner_product(const Reals& a, const Reals& b) { return oracle::dot(a, b); }

/// One query, the entries that it sees, and its attention.
struct Query {
  Query(Reals logits, Vectors values);

  size_t entries() const { return logits.size(); }
  /// 1 - A_p, as the sum of the others' weights
  Real rest(size_t entry) const;
  /// v_p - o
  Reals pull(size_t entry) const { return difference(values[entry], output); }
  /// An upper bound of the squared length of a difference of values or outputs.
  Real squared_terms() const { return 4 * static_cast<Real>(output.size()) * size * size; }

  Reals logits;
  Vectors values;
  Reals attention;  ///< A
  Reals output;     ///< o
  /// The largest |v_pc|, an upper bound of the sum of absolute terms of each element of the output.
  Real size;
};

/// The query after entries were removed from the cache; at least one entry must remain.
Query without(const Query& query, Indices removed);
/// The query with k_p and v_p shrunk to (1 - key) k_p and (1 - value) v_p.
Query shrunk(const Query& query, size_t entry, const Real& key, const Real& value);
/// The output over the other entries alone; zeros if there are none.
Reals output_of_others(const Query& query, size_t entry);

/// The entry's weight at logit 0 instead of z_p, with the same denominator: r = A_p exp(-z_p) = exp(-LSE)
Real slot_weight(const Query& query, size_t entry);

/// The scores of reference/eviction/obcache.hpp in closed forms that do not cancel as A_p -> 1. For Change::exact the
/// cache must have other entries.
Real score(reference::Change change, const Query& query, size_t entry);

/// z (v_p - o) + v_p, the joint score's vector over A_p
Reals joint_pull(const Query& query, size_t entry);

}  // namespace kvbound::exact
