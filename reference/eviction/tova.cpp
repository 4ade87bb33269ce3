#include "tova.hpp"

#include "snap_kv.hpp"

namespace kvbound::reference {

Matrix last_query_attention(const LayerView& layer) { return window_attention(layer, 1); }

}  // namespace kvbound::reference
