#include "dump_tensors.hpp"

#include <algorithm>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>

namespace kvbound::sim {
namespace {

bool ranks_entries(const Policy& policy) { return ranks(policy.host); }
bool evicts_entries(const Policy& policy) { return evicts(policy.host); }
bool merges(const Policy& policy) { return rules_of(policy.merge).merges; }
bool merges_nothing(const Policy& policy) { return !merges(policy); }
bool forms_clusters(const Policy& policy) { return rules_of(policy.merge).target.has_value(); }
bool rebuilds_cache(const Policy& policy) { return rules_of(policy.merge).period.has_value(); }
bool merges_evicted(const Policy& policy) { return merges(policy) && evicts_entries(policy); }
bool merges_evicted_into_clusters(const Policy& policy) {
  return forms_clusters(policy) && evicts_entries(policy);
}
bool has_norms(const Policy& policy) { return rules_of(policy.selection).two_stage.has_value(); }
bool records_stage_two(const Policy& policy) { return rules_of(policy.selection).records_stage_two; }

}  // namespace

const std::vector<DumpTensor>& dump_tensors() {
  using enum Extent;
  static const std::vector<DumpTensor> tensors{
      {.name = "prompt_output", .shape = {window_queries, query_heads, head_dim}},
      {.name = "score_positions", .shape = {scored}, .integral = true, .is_of = ranks_entries},
      {.name = "score", .shape = {kv_heads, scored}, .is_of = ranks_entries},
      {.name = "projected_value_norms", .shape = {query_heads, prompt_tokens}, .is_of = has_norms},
      {.name = "stage_two_score", .shape = {kv_heads, scored}, .is_of = records_stage_two},
      {.name = "kept_offsets", .shape = {kv_head_offsets}, .integral = true},
      {.name = "kept", .shape = {kept_of_all_heads}, .integral = true},
      {.name = "target_of",
       .shape = {kv_heads, prompt_tokens},
       .integral = true,
       .cache = CacheOf::kept,
       .is_of = forms_clusters,
       .only_of = "merge entries into clusters"},
      {.name = "votes",
       .shape = {kept_of_all_heads},
       .cache = CacheOf::prompt,
       .is_of = merges,
       .only_of = "merge"},
      {.name = "merged_key",
       .shape = {kept_of_all_heads, head_dim},
       .cache = CacheOf::prompt,
       .is_of = merges,
       .only_of = "merge"},
      {.name = "merged_value",
       .shape = {kept_of_all_heads, head_dim},
       .cache = CacheOf::prompt,
       .is_of = merges,
       .only_of = "merge"},
      {.name = "rebuilt_target_of",
       .shape = {rebuilds, kv_heads, tokens},
       .integral = true,
       .is_of = rebuilds_cache,
       .only_of = "rebuild the cache"},
      {.name = "rebuilt_votes",
       .shape = {kept_of_rebuilds},
       .cache = CacheOf::rebuilt,
       .is_of = rebuilds_cache,
       .only_of = "rebuild the cache"},
      {.name = "rebuilt_merged_key",
       .shape = {kept_of_rebuilds, head_dim},
       .cache = CacheOf::rebuilt,
       .is_of = rebuilds_cache,
       .only_of = "rebuild the cache"},
      {.name = "rebuilt_merged_value",
       .shape = {kept_of_rebuilds, head_dim},
       .cache = CacheOf::rebuilt,
       .is_of = rebuilds_cache,
       .only_of = "rebuild the cache"},
      {.name = "evicted",
       .shape = {steps, kv_heads},
       .integral = true,
       .cache = CacheOf::history,
       .is_of = evicts_entries,
       .only_of = "evict while decoding"},
      {.name = "merged_into",
       .shape = {steps, kv_heads},
       .integral = true,
       .cache = CacheOf::left,
       .is_of = merges_evicted,
       .only_of = "merge while decoding"},
      {.name = "step_votes",
       .shape = {steps, kv_heads},
       .cache = CacheOf::merged,
       .is_of = merges_evicted_into_clusters,
       .only_of = "merge entries into clusters while decoding"},
      {.name = "step_merged_key",
       .shape = {steps, kv_heads, head_dim},
       .cache = CacheOf::merged,
       .is_of = merges_evicted_into_clusters,
       .only_of = "merge entries into clusters while decoding"},
      {.name = "step_merged_value",
       .shape = {steps, kv_heads, head_dim},
       .cache = CacheOf::merged,
       .is_of = merges_evicted_into_clusters,
       .only_of = "merge entries into clusters while decoding"},
      {.name = "output", .shape = {steps, query_heads, head_dim}, .cache = CacheOf::attended},
      {.name = "kept_mass", .shape = {steps, query_heads}, .cache = CacheOf::attended, .derived = true},
      {.name = "bound",
       .shape = {steps, query_heads},
       .cache = CacheOf::attended,
       .derived = true,
       .is_of = merges_nothing,
       .only_of = "do not merge"},
      {.name = "perturbation", .shape = {steps, query_heads}, .cache = CacheOf::attended, .derived = true},
      {.name = "layer_perturbation", .shape = {steps}, .cache = CacheOf::attended, .derived = true}};
  return tensors;
}

const DumpTensor* find_dump_tensor(std::string_view name) {
  const auto found = std::ranges::find(dump_tensors(), name, &DumpTensor::name);
  return found == dump_tensors().end() ? nullptr : &*found;
}

bool has(const Policy& policy, const DumpTensor& tensor) { return !tensor.is_of || tensor.is_of(policy); }

}  // namespace kvbound::sim
