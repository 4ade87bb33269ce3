// The votes, keys and values of merged entries that a session recorded, one row per entry in the order of a dump.
#pragma once

#include <optional>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/sim/measure/layer_record.hpp>

namespace kvbound::sim {

struct MergedRows {
  std::vector<double> votes;  ///< [rows]
  Matrix keys;                ///< [rows, head_dim]
  Matrix values;              ///< [rows, head_dim]

  void append(const HeadMerge& merge);
};

/// The caches after the prompt, one KV head after the other; nullopt for policies that do not merge.
std::optional<MergedRows> prompt_rows(const PromptRecord& prompt);

/// The rebuilt caches, one rebuild after the other and in each one KV head after the other; nullopt if there are none.
std::optional<MergedRows> rebuilt_rows(const std::vector<StepRecord>& steps);

/// [steps, kv_heads]: the entry that each step's evicted entry merged into, after that merge; zeros where nothing merged.
/// nullopt for policies that form no clusters, and hosts that do not evict.
std::optional<MergedRows> step_rows(const LayerRecord& record);

}  // namespace kvbound::sim
