#include "cache_heads.hpp"

namespace kvbound::traces {

std::string_view name(CacheHeads heads) { return heads == CacheHeads::kv ? "kv" : "query"; }

std::optional<CacheHeads> cache_heads(std::string_view name) {
  for (const CacheHeads heads : {CacheHeads::kv, CacheHeads::query}) {
    if (traces::name(heads) == name) return heads;
  }
  return std::nullopt;
}

LayerShape with_caches_of(LayerShape shape, CacheHeads heads) {
  if (heads == CacheHeads::query) shape.kv_heads = shape.query_heads;
  return shape;
}

Tensor per_query_head(const LayerShape& shape, const Tensor& of_kv_heads) {
  Tensor all = Tensor::for_overwrite(shape.query_heads, of_kv_heads.view().rows, of_kv_heads.view().cols);
  copy_per_query_head(shape, of_kv_heads.numbers(), all.numbers());
  return all;
}

}  // namespace kvbound::traces
