// The budgets of a trace's, or a model's, KV heads.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/head_scores.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// [layers, KV heads], in entries.
using HeadBudgets = std::vector<std::vector<int64_t>>;

/// Among what a budget is shared.
struct BudgetScope {
  LayerShape shape;
  int64_t layers = 0;             ///< of the whole trace or model
  std::vector<int64_t> replayed;  ///< of these, ascending
  int64_t prompt_tokens = 0;
  int64_t window_queries = 0;              ///< recorded ones
  std::vector<int64_t> model_layers = {};  ///< TraceInfo::model_layers
};

/// replayed  layers of the trace
BudgetScope budget_scope(const traces::TraceInfo& trace, std::vector<int64_t> replayed);

/// How many entries a policy keeps in each KV head of each layer: `entries` in all of them, or
///
///     pyramid  on average over all layers, even if only some are replayed; a layer's heads are equal
///     headkv   on average over the heads of the layers that are replayed, by a file with scores of the
///              trace's layers, or of all layers of the model; in others, `entries`
///     adakv    likewise `entries`: a session shares a layer's budget out as its scores are
///
/// entries  valid for the policy: require_valid
/// throws   InvalidPolicy if headkv's file has heads of another model
HeadBudgets head_budgets(const Policy& policy, int64_t entries, const BudgetScope& scope);

/// HeadKV's importances, where a policy has them; null: not read yet, or another allocation.
const HeadScores* head_scores(const Policy& policy);
/// The policy with the importances of the file that it names; other policies as they are. Throws as
/// traces::read_head_scores.
Policy with_head_scores(Policy policy);

/// The mean over a layer's KV heads.
double mean_entries(const std::vector<int64_t>& budgets);

}  // namespace kvbound::sim
