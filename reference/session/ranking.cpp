#include "ranking.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/eviction/group_reduction.hpp>
#include <kvbound/reference/eviction/tova.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::reference {
namespace {

// Scores per query head, and reduced over the group.
struct Scores {
  Matrix per_head;
  Matrix reduced;
};

// The attention scores of a host.
class AttentionScores {
 public:
  AttentionScores(const LayerView& layer, const Ranking& ranking, LayerScores& known)
      : layer_(layer), ranking_(ranking), known_(known) {}

  Scores operator()(const SnapKv& host) const {
    // A budget for the always-kept entries alone, because only the scores are needed here, not the selection.
    const std::vector<int64_t> none(layer_.shape.kv_heads, ranking_.rules.recent);
    SnapKvSelection selection = select_snap_kv(layer_, host, ranking_.rules, none, known_);
    return {std::move(selection.head_scores), std::move(selection.scores)};
  }
  Scores operator()(const H2o&) const { return averaged(known_.attention(layer_, ranking_.rules.window)); }
  Scores operator()(const Tova&) const { return averaged(last_query_attention(layer_)); }
  Scores operator()(const StreamingLlm&) const { throw InvalidPolicy("streaming-llm ranks no entries"); }
  Scores operator()(const RandomHost&) const { throw InvalidPolicy("random ranks no entries"); }
  Scores operator()(const Given& host) const {
    Matrix reduced = columns_of(host.layer->score, ranking_.scored);
    const Matrix& given = host.layer->head_score;
    return {given.rows() > 0 ? columns_of(given, ranking_.scored) : of_every_head(reduced),
            std::move(reduced)};
  }

 private:
  Scores averaged(Matrix attention) const {
    Matrix mean = group_mean(attention, layer_.shape.group_size());
    return {std::move(attention), std::move(mean)};
  }

  // [query_heads, m]: each query head's row is its KV head's.
  Matrix of_every_head(const Matrix& reduced) const {
    Matrix result(layer_.shape.query_heads, reduced.cols());
    for (int64_t h = 0; h < result.rows(); ++h)
      std::ranges::copy(reduced.row(layer_.shape.kv_head_of(h)), result.row(h).begin());
    return result;
  }

  const LayerView& layer_;
  const Ranking& ranking_;
  LayerScores& known_;
};

// Scores that measure the change of outputs, summed over the window.
Scores change_scores(const LayerView& layer, const ScoreRules& score, const HostRules& rules,
                     LayerScores& known) {
  const Matrix& sums = known.changes(layer, rules.window, *score.change, score.space);
  Matrix pooled = max_pool(sums.view().middle_cols(0, rules.scored), rules.pool);
  Matrix reduced = reduce_group(pooled, layer.shape.group_size(), score.group);
  return {std::move(pooled), std::move(reduced)};
}

}  // namespace

SnapKvSelection select_snap_kv(const LayerView& layer, const SnapKv& host, const HostRules& rules,
                               std::span<const int64_t> budgets, LayerScores& known) {
  return snap_kv(layer, {rules.window, rules.recent}, host.pool, budgets,
                 [&](int64_t window) -> const Matrix& { return known.attention(layer, window); });
}

std::vector<int64_t> Ranking::positions_of(std::span<const int64_t> indices) const {
  std::vector<int64_t> positions;
  for (const int64_t i : indices) positions.push_back(scored[first_candidate + i]);
  return positions;
}

Ranking rank(const LayerView& layer, const Policy& policy, LayerScores& known) {
  return rank(layer, policy, rules_of(policy.host, layer.prompt_tokens(), 0), known);
}

Ranking rank(const LayerView& layer, const Policy& policy, const HostRules& rules, LayerScores& known) {
  const int64_t tokens = layer.prompt_tokens();
  Ranking ranking;
  ranking.rules = rules;
  ranking.scored = rules.scored_positions();
  ranking.always_kept = rules.always_kept(tokens);
  ranking.first_candidate = ranking.rules.sinks;
  ranking.candidates = tokens - std::ssize(ranking.always_kept);
  const ScoreRules score = rules_of(policy.score);
  Scores scores = score.change ? change_scores(layer, score, rules, known)
                               : std::visit(AttentionScores(layer, ranking, known), policy.host);
  ranking.head_scores = std::move(scores.per_head);
  ranking.scores = std::move(scores.reduced);
  return ranking;
}

}  // namespace kvbound::reference
