// The heads of a model, as reports name them.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include <kvbound/traces/cache_heads.hpp>

namespace kvbound::sim {

/// "9 query heads on 3 KV heads", and that each query head has a cache where that is so.
///
/// kv_heads  of the model
inline std::string heads_text(int64_t query_heads, int64_t kv_heads, traces::CacheHeads heads) {
  return fmt::format("{} query heads on {} KV heads{}", query_heads, kv_heads,
                     heads == traces::CacheHeads::query ? " (a cache for each query head)" : "");
}

}  // namespace kvbound::sim
