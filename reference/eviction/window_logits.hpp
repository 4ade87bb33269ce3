// The logits and the attention of an observation window, a few query heads and queries at a time. All scores
// of a prompt are computed from them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/numerics/exponential.hpp>

namespace kvbound::reference {

/// Query heads first..first + count - 1, which share a KV head.
struct HeadBlock {
  int64_t first = 0;
  int64_t count = 0;
};

/// The blocks of one KV head's query heads, or of all KV heads.
std::vector<HeadBlock> head_blocks(const LayerShape& shape, int64_t kv_head);
std::vector<HeadBlock> head_blocks(const LayerShape& shape);

/// Successive queries of successive query heads, head by head.
struct WindowLogitsBlock {
  HeadBlock heads;
  int64_t queries = 0;           ///< per head
  std::vector<int64_t> visible;  ///< [rows]: number of tokens that the row's query sees
  std::vector<double> largest;   ///< [rows]: largest visible logit
  MutableMatrixView logits;      ///< [rows, n], natural log; includes the logits of future tokens

  int64_t head_of(int64_t row) const { return heads.first + row / queries; }
};

/// Visits the logits of a window block by block, in memory that all blocks share.
class WindowLogits {
 public:
  /// window  1..layer.window_queries()
  /// throws  ShapeMismatch if the window is not recorded
  WindowLogits(const LayerView& layer, int64_t window);

  /// The largest number of rows in a block.
  int64_t most_rows() const { return queries_.rows(); }

  /// Calls visit for all queries of the window, in the order of their positions. visit
  /// may overwrite the block.
  ///
  /// throws  NonFinite if a visible logit is NaN or infinite
  void visit(const HeadBlock& heads, const std::function<void(const WindowLogitsBlock&)>& visit);

 private:
  void visit_block(const HeadBlock& heads, int64_t first, int64_t count,
                   const std::function<void(const WindowLogitsBlock&)>& visit);

  const LayerView& layer_;
  int64_t window_;
  Matrix queries_;  // [query heads * queries, head_dim]
  Matrix logits_;   // [query heads * queries, n]
};

/// Calls visit(query head, exponentials [n], their sum) for each of the window's queries of these heads. The
/// exponentials are exp(z - largest z) for visible tokens and 0 for the others.
template <class Visit>
void visit_exponentials(WindowLogits& window, const HeadBlock& heads, const Visit& visit) {
  window.visit(heads, [&](const WindowLogitsBlock& block) {
    // Row by row, so that a row is still in the processor's cache when it is visited.
    for (int64_t row = 0; row < block.logits.rows; ++row) {
      const auto index = static_cast<size_t>(row), seen = static_cast<size_t>(block.visible[index]);
      const std::span<double> logits = block.logits.row(row);
      const double sum = exponentiate(logits.first(seen), block.largest[index]);
      std::fill(logits.begin() + block.visible[index], logits.end(), 0.0);
      visit(block.head_of(row), logits, sum);
    }
  });
}

/// Visits the window's attention weights, one query at a time; only a few rows are in memory at once.
///
/// layer    its last `window` recorded queries are the observation window
/// kv_head  KV head whose query heads are visited
/// window   1..layer.window_queries()
/// visit    called with a query head of the group and the weights [n] of one of its queries: >= 0, sum 1,
///          and 0 for future tokens. Every query of every head is visited once; a head's queries in the
///          order of their positions
/// throws   ShapeMismatch if the window is not recorded; NonFinite
void visit_window_attention(const LayerView& layer, int64_t kv_head, int64_t window,
                            const std::function<void(int64_t query_head, VectorView weights)>& visit);

/// The attention that each entry receives from the window's queries, summed.
///
///     sums[h, j] = sum_{i in window} A^h_ij,   A = causal softmax over the whole prompt
///
/// layer    the sum is over its last `window` recorded queries
/// window   1..layer.window_queries()
/// returns  [query_heads, n], each row >= 0 with sum `window`. An entry in a query's future counts as 0
/// throws   ShapeMismatch if the window is not recorded; NonFinite
Matrix window_attention_sums(const LayerView& layer, int64_t window);

}  // namespace kvbound::reference
