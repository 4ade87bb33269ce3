#include "query_logits.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kQueriesAtATime = 32;  // queries whose logits are in memory

}  // namespace

// Every block is a product of the same shape, whatever the number of steps: the last block is padded with
// zero queries at the positions that follow.
void visit_query_logits(const traces::Layer& layer, int64_t head, int64_t steps,
                        const std::function<void(int64_t query, VectorView logits)>& visit) {
  const int64_t count = layer.window_queries + steps,
                first_position = layer.prompt_tokens - layer.window_queries;
  const MatrixView queries = layer.queries.slice(head).middle_rows(0, count),
                   keys = layer.keys.slice(layer.shape.kv_head_of(head));
  Matrix logits(kQueriesAtATime, keys.rows);
  for (int64_t b = 0; b < reference::token_blocks(count, kQueriesAtATime); ++b) {
    const reference::TokenBlock block(queries, b, kQueriesAtATime);
    std::vector<int64_t> visible(kQueriesAtATime);
    std::iota(visible.begin(), visible.end(), first_position + block.first + 1);
    for (int64_t& entries : visible) entries = std::min(entries, keys.rows);
    const MatrixView seen_by_last = keys.middle_rows(0, visible.back());
    const MutableMatrixView seen = logits.view().middle_cols(0, visible.back());
    reference::attention_logits(block.rows, seen_by_last, layer.scale, visible, seen);
    for (int64_t i = 0; i < block.count; ++i) {
      visit(block.first + i, VectorView(seen.row(i)).first(visible[i]));
    }
  }
}

}  // namespace kvbound::sim
