#include "rebuilds.hpp"

#include <utility>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/session/layer_scores.hpp>
#include <kvbound/reference/session/prompt_selection.hpp>
#include <kvbound/reference/session/ranking.hpp>

#include <kvbound/sim/diff/judge/kept_sets.hpp>
#include <kvbound/sim/diff/judge/prompt_errors.hpp>

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

// The layer as if its prompt ended with this step, whose queries are the only ones.
LayerView view_at(const traces::Layer& layer, int64_t t) {
  LayerView view = layer.prompt();
  view.bits = {};
  const int64_t tokens = layer.prompt_tokens + t + 1;
  view.keys = layer.keys.view().middle_rows(0, tokens);
  view.values = layer.values.view().middle_rows(0, tokens);
  view.queries = layer.queries.view().middle_rows(layer.prompt().window_queries() + t, 1);
  return view;
}

// The entries that are their own targets, per KV head.
std::vector<Positions> kept_of(std::span<const int64_t> target_of, int64_t kv_heads, int64_t tokens) {
  const auto stride = std::ssize(target_of) / kv_heads;
  std::vector<Positions> kept(kv_heads);
  for (int64_t g = 0; g < kv_heads; ++g) {
    for (int64_t i = 0; i < tokens; ++i) {
      if (target_of[g * stride + i] == i) kept[g].push_back(i);
    }
  }
  return kept;
}

// The index in a flat list of all KV heads' kept entries as an index [rebuild, KV head, position].
Positions index_of(int64_t rebuild, int64_t element, const std::vector<Positions>& kept) {
  for (size_t g = 0; g < kept.size(); ++g) {
    if (element < std::ssize(kept[g])) return {rebuild, static_cast<int64_t>(g), kept[g][element]};
    element -= std::ssize(kept[g]);
  }
  return {rebuild, std::ssize(kept) - 1, 0};  // nothing is kept there
}

// Adds the judgement of one rebuild's selection to that of all.
//
// tokens  elements of a KV head in rebuilt_target_of
void absorb(TensorAgreement part, int64_t rebuild, const std::vector<Positions>& kept, int64_t tokens,
            TensorAgreement& all) {
  const auto kv_heads = std::ssize(kept);
  const auto add = [&](const Positions& elements, Positions& to) {
    for (const int64_t element : elements) {
      const Positions index = index_of(rebuild, element, kept);
      to.push_back((rebuild * kv_heads + index[1]) * tokens + index[2]);
    }
  };
  add(part.outside_at, all.outside_at);
  add(part.undecided_at, all.undecided_at);
  all.elements += part.elements;
  all.judged += part.judged;
  all.outside += part.outside;
  all.undecided += part.undecided;
  *all.near_tie_swaps += part.near_tie_swaps.value_or(0);
  if (!part.worst) return;
  part.worst->index = index_of(rebuild, part.worst->index.front(), kept);
  if (!all.worst || all.worst->share() < part.worst->share()) all.worst = std::move(part.worst);
}

}  // namespace

RebuildJudgement judge_rebuilds(const traces::Layer& layer, const TestedImplementation& implementation,
                                const std::optional<std::vector<int64_t>>& target_of) {
  RebuildJudgement result;
  result.agreement.tensor = "rebuilt_target_of";
  result.agreement.near_tie_swaps = 0;
  const MergeRules merging = rules_of(implementation.policy.merge);
  const int64_t kv_heads = layer.shape.kv_heads,
                stride = kv_heads * (layer.prompt_tokens + implementation.steps);
  int64_t rows = 0;  // of the rebuilt caches so far
  for (int64_t t = 0; t < implementation.steps; ++t) {
    if (!merging.rebuilds_at(t)) continue;
    RebuiltLayer rebuilt{view_at(layer, t), {}};
    const int64_t tokens = rebuilt.view.prompt_tokens();
    const HostRules rules = rebuild_rules(implementation.policy.host, tokens, t + 1);
    TestedImplementation then = implementation;
    then.budgets.clear();
    for (int64_t g = 0; g < kv_heads; ++g) {
      then.budgets.push_back(rebuild_budget(rules, implementation.budget(g), t + 1));
    }
    reference::LayerScores known(nullptr);
    const reference::Ranking ranking = reference::rank(rebuilt.view, then.policy, rules, known);
    const PromptRecord reference =
        reference::select_prompt(rebuilt.view, then.policy, ranking, then.budgets, known, nullptr);
    rebuilt.kept = reference.kept;
    rebuilt.rows = then.budgets;
    std::vector<bool> followed(kv_heads, true);  // the claimed selection
    const int64_t number = std::ssize(result.rebuilt);
    if (target_of) {
      rebuilt.target_of = std::span(*target_of).subspan(number * stride, stride);
      const std::vector<Positions> claimed = kept_of(rebuilt.target_of, kv_heads, tokens);
      const PromptErrors errors(rebuilt.view, then, reference, rules);
      absorb(judge_kept(rebuilt.view, then, reference, errors, claimed, std::nullopt, rebuilt.kept), number,
             claimed, layer.prompt_tokens + implementation.steps, result.agreement);
      for (int64_t g = 0; g < kv_heads; ++g) followed[g] = claimed[g] == rebuilt.kept[g];
    }
    for (int64_t g = 0; g < kv_heads; ++g) {
      const bool is_whole = followed[g] && std::ssize(rebuilt.kept[g]) == then.budgets[g];
      rebuilt.first_rows.push_back(is_whole ? std::optional(rows) : std::nullopt);
      rows += then.budgets[g];
    }
    result.rebuilt.push_back(std::move(rebuilt));
  }
  return result;
}

}  // namespace kvbound::sim
