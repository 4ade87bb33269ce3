#include "recall.hpp"

#include <algorithm>
#include <vector>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>

#include "obcache.hpp"
#include "selection.hpp"

namespace kvbound::reference {
namespace {

void require_step(const LayerShape& shape, TensorView keys, TensorView values, MatrixView queries,
                  int64_t prompt_tokens) {
  require_equal("slices of keys", keys.slices, "KV heads", shape.kv_heads);
  require_equal("slices of values", values.slices, "KV heads", shape.kv_heads);
  require_equal("rows of keys", keys.rows, "rows of values", values.rows);
  require_equal("rows of queries", queries.rows, "query heads", shape.query_heads);
  if (prompt_tokens < 0 || prompt_tokens > keys.rows) {
    throw ShapeMismatch("a prompt of " + std::to_string(prompt_tokens) + " tokens in a cache of " +
                        std::to_string(keys.rows) + " entries");
  }
}

}  // namespace

Matrix eviction_errors(const LayerShape& shape, double scale, TensorView keys, TensorView values,
                       MatrixView queries, int64_t prompt_tokens) {
  require_step(shape, keys, values, queries, prompt_tokens);
  const int64_t group = shape.group_size();
  const std::vector<ValueSpace> spaces(group);
  Matrix errors(shape.query_heads, prompt_tokens);
  parallel_for(shape.kv_heads, [&](int64_t g) {
    const std::vector<double> norms = spaces.front().squared_norms(values.slice(g));
    const MatrixView same_for_all_heads(norms.data(), group, values.rows, 0);
    const ScoredCache cache{keys.slice(g), values.slice(g), same_for_all_heads, spaces};
    const Matrix scores =
        scored_attention(Change::exact, queries.middle_rows(g * group, group), cache, scale).scores;
    for (int64_t h = 0; h < group; ++h) {
      std::ranges::copy(scores.row(h).first(prompt_tokens), errors.row(g * group + h).begin());
    }
  });
  return errors;
}

double share_found(std::span<const int64_t> wanted, std::span<const int64_t> found) {
  if (wanted.empty()) throw ShapeMismatch("of 0 wanted entries no share can be found");
  const auto is_found = [&](int64_t entry) { return std::ranges::binary_search(found, entry); };
  return static_cast<double>(std::ranges::count_if(wanted, is_found)) / static_cast<double>(wanted.size());
}

double recall(VectorView scores, VectorView truth, int64_t k) {
  require_equal("scores", std::ssize(scores), "entries", std::ssize(truth));
  return share_found(select_top(truth, k), select_top(scores, k));
}

}  // namespace kvbound::reference
