// Three evaluations of an instance: exact, by the double-precision
// reference, and with bounds on the reference's rounding errors.
#pragma once

#include <vector>

#include <kvbound/proofs/engine/instance.hpp>
#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/proofs/oracle/exact.hpp>

namespace kvbound::proofs {

/// Evaluated by the definitions, in 50 digits.
struct Exact {
  explicit Exact(const Instance& instance);

  /// V of the query head that row `row` belongs to.
  const std::vector<exact::Reals>& projected_of_row(size_t row) const { return projected[head_of_row[row]]; }
  exact::Reals norms_of_row(size_t row, exact::Norm norm = exact::Norm::l1) const {
    return exact::norms(projected_of_row(row), norm);
  }

  std::vector<exact::Reals> attention;               ///< [query_heads * queries][tokens]
  std::vector<std::vector<exact::Reals>> projected;  ///< V [query_heads][tokens][model_dim]
  std::vector<size_t> head_of_row;                   ///< [query_heads * queries]
};

/// Evaluated by kvbound::reference.
struct Computed {
  explicit Computed(const Instance& instance);

  Matrix attention;  ///< [query_heads * queries, tokens]
  Matrix norms;      ///< L1, [query_heads, tokens]
};

/// The same quantities as Computed, exact, each with a bound on the reference's error.
struct Bounds {
  explicit Bounds(const Instance& instance);

  oracle::Rows attention;
  oracle::Rows norms;
};

/// Whether the attention mass of these entries, computed in double precision, is well above its error bound.
/// If it is not, only forms that start from logits are accurate.
bool resolved(const oracle::Row& attention, oracle::Indices entries);

}  // namespace kvbound::proofs
