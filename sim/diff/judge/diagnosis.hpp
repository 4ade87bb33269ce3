// Why attention outputs are wrong, in words: the one fault that explains all rows that differ.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/bounds/functionals.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// A claimed output that differs, and what it should have been computed from. All views
/// must outlive the search.
struct DifferingOutput {
  VectorView query;         ///< [head_dim]
  MatrixView keys, values;  ///< [tokens, head_dim]
  VectorView votes;         ///< [tokens]; empty: 1 each
  double scale = 1;
  VectorView claimed;  ///< [head_dim]
  int64_t head = 0;    ///< its query head
  /// [heads, head_dim]: the right outputs of all query heads for the same token; no rows: not known
  MatrixView outputs;
  /// [KV heads, head_dim]: the query's outputs over the entries of each KV head; no rows:
  /// not known. Needs `outputs`.
  MatrixView of_kv_heads = {};
  /// Whether the claimed output is within the bounds of an implementation whose output
  /// is this one, [head_dim].
  std::function<bool(VectorView)> fits;
};

/// The bounds of a right output, around any other: of each element, of the gain and of the difference.
///
/// errors, functionals  of `query`; must outlive the function, as `claimed` must
/// storage              the type that claimed numbers were rounded to
std::function<bool(VectorView)> fit_of(const reference::AttentionErrors& errors, int64_t query,
                                       const reference::OutputFunctionals& functionals, VectorView claimed,
                                       Dtype storage);

/// The first of these faults that explains every row, with the same numbers in all: an output with the fault,
/// computed in double precision, fits.
///
///     rows are zero; rows are not finite
///     query heads 1, 2 hold the outputs of 4, 1
///     query heads read KV head h mod 2; expected h div 4
///     query heads 1, 2 read KV heads 3, 2; expected 0, 0
///     outputs are 0.500 of what they should be
///     exponentials are to base 2; logits are not scaled, or scaled twice; logits are scaled by 1.030
///     64 entries with logit 0 are in the denominator
///     entries 128-191 are missing, or counted twice
///
/// returns  nullopt if there is none, or no row
std::optional<std::string> diagnosis(const std::vector<DifferingOutput>& rows);

}  // namespace kvbound::sim
