// An instance evaluated three times over: exactly, by the double-precision reference, and with bounds on what
// the reference may have got wrong.
#pragma once

#include <vector>

#include <kvbound/proofs/engine/instance.hpp>
#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/proofs/oracle/exact.hpp>

namespace kvbound::proofs {

/// From the definitions, in 50 digits.
struct Exact {
  explicit Exact(const Instance& instance);

  /// Of row r's query head.
  const std::vector<exact::Reals>& projected_of_row(size_t row) const { return projected[head_of_row[row]]; }
  exact::Reals norms_of_row(size_t row, exact::Norm norm = exact::Norm::l1) const {
    return exact::norms(projected_of_row(row), norm);
  }

  std::vector<exact::Reals> attention;               ///< [query_heads * queries][tokens]
  std::vector<std::vector<exact::Reals>> projected;  ///< V [query_heads][tokens][model_dim]
  std::vector<size_t> head_of_row;                   ///< [query_heads * queries]
};

/// From kvbound::reference.
struct Computed {
  explicit Computed(const Instance& instance);

  Matrix attention;  ///< [query_heads * queries, tokens]
  Matrix norms;      ///< L1, [query_heads, tokens]
};

/// The same quantities as Computed, each with the bound of its error.
struct Bounds {
  explicit Bounds(const Instance& instance);

  oracle::Rows attention;
  oracle::Rows norms;
};

/// Whether doubles can hold the attention mass of these entries: far below it, only logits can.
bool resolved(const oracle::Row& attention, oracle::Indices entries);

}  // namespace kvbound::proofs
