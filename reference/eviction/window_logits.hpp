// The logits and the attention of an observation window, a few query heads and queries at a time: what every score of a prompt
// starts from.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/numerics/exponential.hpp>
#include <kvbound/reference/numerics/scratch.hpp>

namespace kvbound::reference {

/// Query heads first..first + count - 1, which share a KV head.
struct HeadBlock {
  int64_t first = 0;
  int64_t count = 0;
};

/// The blocks of one KV head's query heads, and those of all KV heads.
std::vector<HeadBlock> head_blocks(const LayerShape& shape, int64_t kv_head);
std::vector<HeadBlock> head_blocks(const LayerShape& shape);

/// Successive queries of successive query heads, head by head.
struct WindowLogitsBlock {
  HeadBlock heads;
  int64_t queries = 0;           ///< per head
  std::vector<int64_t> visible;  ///< [rows]: how many tokens each row's query sees
  std::vector<double> largest;   ///< [rows]: of the logits that it sees
  MutableMatrixView logits;      ///< [rows, n], natural log; the future's are there, too

  int64_t head_of(int64_t row) const { return heads.first + row / queries; }
};

/// Memory for the logits of one block at a time, to be used again for the next.
class WindowLogits {
 public:
  /// window  1..layer.window_queries()
  /// throws  ShapeMismatch if it is not recorded
  WindowLogits(const LayerView& layer, int64_t window);

  /// The most rows that a block has.
  int64_t most_rows() const { return queries_.rows(); }

  /// Calls visit with all queries of the window, in the order of their positions. What it is shown may be overwritten.
  ///
  /// throws  NonFinite if a logit that a query sees is NaN or infinite
  void visit(const HeadBlock& heads, const std::function<void(const WindowLogitsBlock&)>& visit);

 private:
  void visit_block(const HeadBlock& heads, int64_t first, int64_t count,
                   const std::function<void(const WindowLogitsBlock&)>& visit);

  const LayerView& layer_;
  int64_t window_;
  Matrix queries_;  // [query heads * queries, head_dim]
  Scratch logits_;  // [query heads * queries, n]
};

/// Calls visit(query head, exponentials, their sum) for each of the window's queries of these heads: exp(z - largest z) of
/// what it sees, 0 of the rest, [n].
template <class Visit>
void visit_exponentials(WindowLogits& window, const HeadBlock& heads, const Visit& visit) {
  window.visit(heads, [&](const WindowLogitsBlock& block) {
    // Row by row, so that it is still in the processor's cache when it is looked at.
    for (int64_t row = 0; row < block.logits.rows; ++row) {
      const auto index = static_cast<size_t>(row), seen = static_cast<size_t>(block.visible[index]);
      const std::span<double> logits = block.logits.row(row);
      const double sum = exponentiate(logits.first(seen), block.largest[index]);
      std::fill(logits.begin() + block.visible[index], logits.end(), 0.0);
      visit(block.head_of(row), logits, sum);
    }
  });
}

/// Shows the window's attention weights, one query at a time; those in memory at once are few.
///
/// layer    its last `window` recorded queries are the observation window
/// kv_head  whose query heads
/// window   1..layer.window_queries()
/// visit    called with a query head of the group and the weights [n] of one of its queries: >= 0, sum 1, and 0
///          in the query's future. Every query of every head once; a head's in the order of their positions
/// throws   ShapeMismatch if the window is not recorded; NonFinite
void visit_window_attention(const LayerView& layer, int64_t kv_head, int64_t window,
                            const std::function<void(int64_t query_head, VectorView weights)>& visit);

/// The attention that the window's queries pay each entry, added up.
///
///     sums[h, j] = sum_{i in window} A^h_ij,   A = causal softmax over the whole prompt
///
/// layer    its last `window` recorded queries count; all of the prompt's, if so many are recorded
/// window   1..layer.window_queries()
/// returns  [query_heads, n], each row >= 0 with sum `window`. An entry in a query's future counts as 0
/// throws   ShapeMismatch if the window is not recorded; NonFinite
Matrix window_attention_sums(const LayerView& layer, int64_t window);

}  // namespace kvbound::reference
