// What is worth knowing of a model's heads before its cache is compressed: attention sinks, entropy, score
// ties, and the effective rank of values.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/options/budget.hpp>
#include <kvbound/traces/trace.hpp>

#include "attention_profile.hpp"
#include "effective_rank.hpp"
#include "score_ties.hpp"

namespace kvbound::sim {

struct HeadProfileOptions {
  int64_t sinks = 4;          ///< number of first positions that count as sinks, >= 1
  int64_t window = 32;        ///< number of last prompt queries whose attention scores, 1..window_queries
  int64_t pool = 7;           ///< width of the max-pool, odd
  Budget budget{{20}, true};  ///< entries per KV head, of the prompt, the window's included, 0..n

  /// Prompt entries that are ranked: all before the window.
  int64_t candidates(int64_t prompt_tokens) const { return prompt_tokens - window; }
  /// How many of them the budget selects, 0 if it is spent on the window.
  int64_t selected(int64_t prompt_tokens) const;
};

/// The ties of one KV head's scores with a pool of a certain width, stored as double or as bfloat16.
struct StoredTies {
  int64_t pool = 1;
  Dtype storage = Dtype::f64;
  ScoreTies ties;
};

struct KvHeadProfile {
  EffectiveRank values;          ///< of the values of all n + T entries
  std::vector<StoredTies> ties;  ///< for no pool and, if it is wider than 1, options.pool: F64, then BF16
};

struct LayerProfile {
  int64_t layer = 0;
  std::vector<AttentionProfile> query_heads;  ///< over all recorded queries
  std::vector<KvHeadProfile> kv_heads;
};

struct HeadProfiles {
  traces::TraceInfo trace;
  HeadProfileOptions options;
  std::vector<LayerProfile> layers;

  /// The ties that are there in each KV head: widths of pools and storage types.
  const std::vector<StoredTies>& kinds_of_ties() const { return layers.front().kv_heads.front().ties; }
};

/// Profiles every head of a layer.
///
/// attention  attention_profile of every query head
/// values     effective_rank of every KV head's values, [n + T, head_dim]
/// ties       score_ties of SnapKV's scores (reference::snap_kv) of the candidates: attention averaged over
///            the window's queries, max-pooled per query head, averaged over the query heads of the KV head;
///            in double precision, and rounded once to bfloat16 at the end
/// index      of the layer
///
/// throws     ShapeMismatch for options out of range; NonFinite
LayerProfile layer_profile(const traces::Layer& layer, int64_t index, const HeadProfileOptions& options);

/// The same for some of a trace's layers, at least one; one is in memory at a time.
///
/// progress  called with the number of layers done, and their total
/// Throws TraceError, also for numbers so large that attention over them overflows.
HeadProfiles head_profiles(const traces::Trace& trace, const std::vector<int64_t>& layers,
                           const HeadProfileOptions& options,
                           const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace kvbound::sim
