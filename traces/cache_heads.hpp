// Which heads have a cache: the KV heads, or every query head, as in OBCache's measurements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::traces {

enum class CacheHeads {
  kv,  ///< the query heads of a group share their KV head's cache, as grouped-query attention is served
  /// Every query head chooses entries of its own: keys and values are stored group_size() times, and all
  /// methods and bounds are those of multi-head attention.
  query,
};

/// "kv", "query".
std::string_view name(CacheHeads heads);
/// By that name; nullopt for any other text.
std::optional<CacheHeads> cache_heads(std::string_view name);

/// The shape in which the KV heads are those that have a cache.
LayerShape with_caches_of(LayerShape shape, CacheHeads heads);

/// What every query head has of what KV heads have: of query head h that of KV head h / group_size().
///
/// of_kv_heads     kv_heads parts of equal length
/// of_query_heads  query_heads such parts, written
template <class Number>
void copy_per_query_head(const LayerShape& shape, std::span<const Number> of_kv_heads,
                         std::span<Number> of_query_heads) {
  const size_t length = of_query_heads.size() / static_cast<size_t>(shape.query_heads);
  for (int64_t h = 0; h < shape.query_heads; ++h) {
    std::ranges::copy(of_kv_heads.subspan(static_cast<size_t>(shape.kv_head_of(h)) * length, length),
                      of_query_heads.subspan(static_cast<size_t>(h) * length, length).begin());
  }
}
/// The same of [kv_heads, rows, cols]: returns [query_heads, rows, cols].
Tensor per_query_head(const LayerShape& shape, const Tensor& of_kv_heads);

}  // namespace kvbound::traces
