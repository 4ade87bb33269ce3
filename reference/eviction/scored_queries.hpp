// The scores of obcache.hpp for a block of queries at once, so that products with values serve all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "obcache.hpp"
#include "output_change.hpp"

namespace kvbound::reference {

/// Some queries over one KV head's entries: of each head's the same number, one head after the other.
struct QueryBlock {
  MatrixView logits;                 ///< [rows, entries]
  MatrixView voted;                  // likewise: logits + ln votes, by which they attend
  std::span<const int64_t> visible;  ///< [rows]
  std::span<const double> largest;   ///< [rows], of the voted ones
  int64_t per_head = 1;

  size_t head_of(int64_t row) const { return static_cast<size_t>(row / per_head); }
};

/// What the queries look at; heads are those of the queries.
struct EntryBlock {
  MatrixView values;                   ///< [entries, head_dim]
  MatrixView squared_norms;            ///< [heads, entries]
  std::span<const ValueSpace> spaces;  ///< [heads]
};

/// The outputs of a block of queries, and what each entry is worth to them.
class ScoredQueries {
 public:
  /// weights  [rows, entries], overwritten
  ScoredQueries(Change change, const QueryBlock& queries, const EntryBlock& entries,
                MutableMatrixView weights);

  /// The queries' outputs.
  const Matrix& attend_values();
  /// The true weights, from shares.
  void restore_weights();
  /// scores[head, j] += the change of each of the head's queries. After attend_values, unless `value` is scored.
  void add_scores(MutableMatrixView scores);

 private:
  void project_outputs();
  void add_row(int64_t row, int64_t first_entry, MatrixView values, int64_t count, std::span<double> changes,
               MutableMatrixView scores);

  Change change_;
  const QueryBlock& queries_;
  const EntryBlock& entries_;
  MutableMatrixView weights_;  // of the rows with an entry set aside: shares of `rest`, and 0 for it
  std::vector<QueryAttention> attention_;  // [rows]
  Matrix means_;                           // sum_j weights_ij v_j [rows, head_dim]
  Matrix outputs_, gram_products_;         // [rows, head_dim]
  std::vector<double> output_norms_;       // [rows]
};

}  // namespace kvbound::reference
