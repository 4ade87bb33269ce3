// What a tested implementation recorded about a layer's compressed cache: any subset of a dump's tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/measure/layer_record.hpp>

namespace kvbound::sim {

/// Real numbers as they were recorded.
struct RealClaim {
  std::vector<int64_t> shape;
  std::vector<double> numbers;  ///< in C order; may be NaN or infinite
  Dtype storage = Dtype::f64;   ///< the type that each number was rounded to
};

/// One layer's claims. Names and shapes are those of dump_tensors(); `steps` may be fewer than the trace has.
struct LayerClaims {
  std::optional<std::vector<std::vector<int64_t>>> kept;  ///< per KV head
  std::optional<std::vector<int64_t>> kept_offsets;       ///< [kv_heads + 1]
  std::optional<std::vector<int64_t>> evicted;            ///< [steps, kv_heads]; -1: none; not validated
  std::optional<std::vector<int64_t>>
      merged_into;  ///< [steps, kv_heads]; -1: dropped, -2: no entry was evicted; not validated
  /// [kv_heads, n]: HeadMerge::target_of after the prompt; not validated
  std::optional<std::vector<int64_t>> target_of;
  /// [rebuilds, kv_heads, n + steps]: the same of every rebuild; kNothingEvicted for
  /// tokens that were still to come
  std::optional<std::vector<int64_t>> rebuilt_target_of;
  std::optional<RealClaim> votes;                       ///< [sum of kept]: the cache after the prompt
  std::optional<RealClaim> merged_key;                  ///< [sum of kept, head_dim]
  std::optional<RealClaim> merged_value;                ///< [sum of kept, head_dim]
  std::optional<RealClaim> rebuilt_votes;               ///< [rows of rebuilt_rows()]: the rebuilt caches
  std::optional<RealClaim> rebuilt_merged_key;          ///< [rows of rebuilt_rows(), head_dim]
  std::optional<RealClaim> rebuilt_merged_value;        ///< [rows of rebuilt_rows(), head_dim]
  std::optional<RealClaim> step_votes;                  ///< [steps, kv_heads]: see step_rows()
  std::optional<RealClaim> step_merged_key;             ///< [steps, kv_heads, head_dim]
  std::optional<RealClaim> step_merged_value;           ///< [steps, kv_heads, head_dim]
  std::optional<RealClaim> prompt_output;               ///< [window queries, query_heads, head_dim]
  std::optional<std::vector<int64_t>> score_positions;  ///< [m]
  std::optional<RealClaim> score;                       ///< [kv_heads, m]
  std::optional<RealClaim> projected_value_norms;       ///< [query_heads, n]
  std::optional<RealClaim> stage_two_score;             ///< [kv_heads, m]
  std::optional<RealClaim> output;                      ///< [steps, query_heads, head_dim]
  std::optional<RealClaim> kept_mass;                   ///< [steps, query_heads]
  std::optional<RealClaim> bound;                       ///< [steps, query_heads]
  std::optional<RealClaim> perturbation;                ///< [steps, query_heads]
  std::optional<RealClaim> layer_perturbation;          ///< [steps]
};

/// The real tensors of a dump, and those of integers but for `kept`: names, and where claims hold them.
struct RealTensor {
  const char* name;
  std::optional<RealClaim> LayerClaims::*claim;
};
struct IntegerTensor {
  const char* name;
  std::optional<std::vector<int64_t>> LayerClaims::*claim;
};
std::span<const RealTensor> real_tensors();
std::span<const IntegerTensor> integer_tensors();

/// The votes, keys and values of merged entries that a session recorded, one row per
/// entry in the order of a dump.
struct MergedRows {
  std::vector<double> votes;  ///< [rows]
  Matrix keys;                ///< [rows, head_dim]
  Matrix values;              ///< [rows, head_dim]

  void append(const HeadMerge& merge);
};

/// The caches after the prompt, one KV head after the other; nullopt for policies that do not merge.
std::optional<MergedRows> prompt_rows(const PromptRecord& prompt);

/// The rebuilt caches, one rebuild after the other and in each one KV head after the other;
/// nullopt if there are none.
std::optional<MergedRows> rebuilt_rows(const std::vector<StepRecord>& steps);

/// [steps, kv_heads]: the entry that each step's evicted entry merged into, after that merge; zeros where
/// nothing merged. nullopt for policies that form no clusters, and hosts that do not evict.
std::optional<MergedRows> step_rows(const LayerRecord& record);

/// target_of of a session's record, in the shape of the claim; nullopt if its policy forms no clusters.
std::optional<std::vector<int64_t>> prompt_targets(const PromptRecord& prompt);
/// The same of its rebuilds; nullopt if there are none.
///
/// tokens  of the prompt and of all steps
std::optional<std::vector<int64_t>> rebuilt_targets(const std::vector<StepRecord>& steps, int64_t tokens);

/// What a session recorded, as claims. Metrics are not among them: the same code measures every record.
///
/// storage  the type in which the session computed its numbers
LayerClaims claims_of(const LayerRecord& record, Dtype storage = Dtype::f64);

}  // namespace kvbound::sim
