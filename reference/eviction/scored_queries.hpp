// The scores of obcache.hpp for a block of queries at once, so
// that one matrix product with the values serves all queries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "obcache.hpp"
#include "output_change.hpp"

namespace kvbound::reference {

/// Queries over one KV head's entries: the same number for each query head, head by head.
struct QueryBlock {
  MatrixView logits;  ///< [rows, entries]
  MatrixView voted;   ///< [rows, entries]: logits + ln votes, whose softmax are the attention weights
  std::span<const int64_t> visible;  ///< [rows]: each query sees entries 0..visible - 1
  std::span<const double> largest;   ///< [rows]: largest visible voted logit
  int64_t per_head = 1;

  size_t head_of(int64_t row) const { return static_cast<size_t>(row / per_head); }
};

/// The entries that the queries attend to; heads are those of the queries.
struct EntryBlock {
  MatrixView values;                   ///< [entries, head_dim]
  MatrixView squared_norms;            ///< [heads, entries]
  std::span<const ValueSpace> spaces;  ///< [heads]
};

/// The outputs of a block of queries, and the scores of the entries for them.
class ScoredQueries {
 public:
  /// weights  [rows, entries], overwritten
  ScoredQueries(Change change, const QueryBlock& queries, const EntryBlock& entries,
                MutableMatrixView weights);

  /// The queries' outputs.
  const Matrix& attend_values();
  /// Turns the shares in `weights` back into attention weights, the dominant entry's included.
  void restore_weights();
  /// scores[head, j] += sum of the scores of the head's queries.
  /// Call it after attend_values, unless Change::value is scored.
  void add_scores(MutableMatrixView scores);

 private:
  void project_outputs();
  void add_row(int64_t row, int64_t first_entry, MatrixView values, int64_t count, std::span<double> changes,
               MutableMatrixView scores);

  Change change_;
  const QueryBlock& queries_;
  const EntryBlock& entries_;
  MutableMatrixView
      weights_;  // in rows with a dominant entry: shares of `rest`, and 0 for the dominant entry
  std::vector<QueryAttention> attention_;  // [rows]
  Matrix means_;                           // sum_j weights_ij v_j [rows, head_dim]
  Matrix outputs_, gram_products_;         // [rows, head_dim]
  std::vector<double> output_norms_;       // [rows]
};

}  // namespace kvbound::reference
