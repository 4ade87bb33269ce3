#include "h2o.hpp"

#include "window_logits.hpp"

namespace kvbound::reference {

Matrix accumulated_attention(const LayerView& layer, int64_t window) {
  return window_attention_sums(layer, window);
}

}  // namespace kvbound::reference
