// Keys that make attention random, flat, peaked, tied, dominated by a sink, or extreme.
#pragma once

#include <cstdint>
#include <string_view>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::parity {

enum class Distribution {
  random,   ///< logits nearly normal
  flat,     ///< all logits nearly 0
  peaked,   ///< logits so far apart that few entries have nearly all weight
  tied,     ///< three different keys only
  sink,     ///< the first entry's logit is 30
  extreme,  ///< logits near -1e4 and 1e4 in turns
};
inline constexpr Distribution kDistributions[] = {Distribution::random, Distribution::flat,
                                                  Distribution::peaked, Distribution::tied,
                                                  Distribution::sink,   Distribution::extreme};

std::string_view name(Distribution distribution);

/// queries  [kv_heads, head_dim]: for each KV head the query to which `sink` and `extreme` refer
/// returns  [kv_heads, tokens, head_dim], not rounded
Tensor keys_of(Distribution distribution, uint64_t seed, MatrixView queries, int64_t tokens, double scale);

}  // namespace kvbound::parity
