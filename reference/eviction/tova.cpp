#include "tova.hpp"

#include <algorithm>

#include <kvbound/reference/core/parallel.hpp>

#include "window_logits.hpp"

namespace kvbound::reference {

Matrix last_query_attention(const LayerView& layer) {
  Matrix weights(layer.shape.query_heads, layer.prompt_tokens());
  parallel_for(layer.shape.kv_heads, [&](int64_t g) {
    visit_window_attention(layer, g, 1, [&](int64_t head, VectorView last) {
      std::ranges::copy(last, weights.row(head).begin());
    });
  });
  return weights;
}

}  // namespace kvbound::reference
