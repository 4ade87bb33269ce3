// CaM: who leaves gives its value, or nothing, to those that follow.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/head_cache.hpp>

namespace kvbound::reference {

/// With which probability a leaving value is spread.
///
///     min(1, A_e / mean of A over those that share it);   0/0 is 0, x/0 is 1
///
/// following  [count >= 1]: their attention weights
/// throws     ShapeMismatch if no entry follows; NonFinite
double spread_probability(double attention_weight, VectorView following);

/// Whether it is: a draw that depends on these three alone.
///
///     (mix(mix(mix(seed + G) + kv_head + G) + position + G) >> 11) 2^-53 < probability
///
/// mix: SplitMix64's finaliser, G = 0x9e3779b97f4a7c15, everything modulo 2^64
bool spreads(double probability, int64_t seed, int64_t kv_head, int64_t position);

/// The entries that share an evicted one's value: those at the next larger positions, nearest first.
///
/// positions  of a cache, in any order
/// most       >= 1
/// returns    indices of positions
std::vector<int64_t> following_entries(std::span<const int64_t> positions, int64_t position, int64_t most);

/// The attention that a KV head's query heads pay, their mean.
///
/// logits   [group_size, entries], natural log
/// returns  [entries], sum 1
std::vector<double> mean_attention(Matrix logits);

/// Spreads the values of all who left a prompt, by ascending position, over those of a cache.
///
///     v_j += v_e / count  for the `neighbours` entries j behind e, or as many as there are, if the draw says so
///
/// attention  [n]: mean_attention of the last query
/// values     [n, head_dim], the originals
/// cache      who stays, by ascending position
/// returns    clusters: whose values were spread, by the first entry that shares them; counts of these
/// source     CaM (ICML 2024, "CaM: Cache Merging for Memory-efficient LLMs Inference")
HeadMerge spread_leaving(const Cam& options, int64_t kv_head, VectorView attention, MatrixView values,
                         HeadCache& cache);

/// Spreads the value of an entry that is to leave a cache, and is still there, likewise.
///
/// attention  [entries]: mean_attention of the step's query
/// drawn      whether it is spread, where that is already decided
/// changed    the entries that share it are added
HeadMerge spread_entry(const Cam& options, int64_t kv_head, VectorView attention, int64_t leaving,
                       std::optional<bool> drawn, HeadCache& cache, std::vector<int64_t>& changed);

}  // namespace kvbound::reference
