// CaM: the value of an evicted entry is dropped or spread over the entries that follow it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/head_cache.hpp>

namespace kvbound::reference {

/// The probability with which an evicted entry's value is spread.
///
///     min(1, A_e / mean of A over the entries that share the value);   0/0 is 0, x/0 is 1
///
/// attention_weight  A_e
/// following  [count >= 1]: attention weights of the entries that share the value
/// returns    0..1
/// throws     ShapeMismatch if no entry follows; NonFinite
double spread_probability(double attention_weight, VectorView following);

/// The random draw that decides whether a value is spread. It depends on its arguments alone.
///
///     (mix(mix(mix(seed + G) + kv_head + G) + position + G) >> 11) 2^-53 < probability
///
/// mix: SplitMix64's finaliser, G = 0x9e3779b97f4a7c15, everything modulo 2^64
bool spreads(double probability, int64_t seed, int64_t kv_head, int64_t position);

/// The entries that share an evicted entry's value: those at the next larger positions, nearest first.
///
/// positions  of a cache's entries, in any order
/// position   of the evicted entry
/// most       >= 1: largest number of entries
/// returns    indices into `positions`
std::vector<int64_t> following_entries(std::span<const int64_t> positions, int64_t position, int64_t most);

/// The mean of the attention weights of a KV head's query heads.
///
/// logits   [group_size, entries], natural log
/// returns  [entries], sum 1
std::vector<double> mean_attention(Matrix logits);

/// Spreads the values of all evicted entries of a prompt, by ascending position, over the values of a cache.
///
///     v_j += v_e / count  for the `count` entries j after e, at most `neighbours`, if `spreads` draws true
///
/// attention  [n]: mean_attention of the last query
/// values     [n, head_dim], the original values
/// cache      the kept entries, by ascending position
/// returns    clusters: evicted entries whose values were spread, grouped by the first entry that
///            shares them; counts.merged
/// source     CaM (ICML 2024, "CaM: Cache Merging for Memory-efficient LLMs Inference")
HeadMerge spread_leaving(const Cam& options, int64_t kv_head, VectorView attention, MatrixView values,
                         HeadCache& cache);

/// Spreads the value of one entry that is about to be evicted, and is still in the cache, in the same way.
///
/// attention  [entries]: mean_attention of the step's query
/// leaving    the entry's index in the cache
/// drawn      a prescribed outcome of the draw; nullopt: `spreads` decides
/// changed    the entries that share the value are appended
HeadMerge spread_entry(const Cam& options, int64_t kv_head, VectorView attention, int64_t leaving,
                       std::optional<bool> drawn, HeadCache& cache, std::vector<int64_t>& changed);

}  // namespace kvbound::reference
