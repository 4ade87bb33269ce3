#include "prompt_errors.hpp"

#include <algorithm>
#include <optional>
#include <variant>

#include <kvbound/reference/bounds/given_errors.hpp>
#include <kvbound/reference/bounds/group_errors.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::sim {
namespace {

// Error bounds of a host's attention score per query head, for the scored positions, before pooling.
struct AttentionScoreErrors {
  const LayerView& layer;
  const TestedImplementation& implementation;
  const reference::Ranking& ranking;
  const Matrix& weight_errors;

  Matrix operator()(const SnapKv&) const { return of_window(); }
  Matrix operator()(const H2o&) const { return of_window(); }
  Matrix operator()(const Tova&) const { return of_window(); }
  Matrix operator()(const StreamingLlm&) const { throw InvalidPolicy("streaming-llm ranks no entries"); }
  Matrix operator()(const RandomHost&) const { throw InvalidPolicy("random ranks no entries"); }
  Matrix operator()(const Given&) const {
    return reference::given_errors(ranking.head_scores, implementation.arithmetic.window_attention);
  }

 private:
  Matrix of_window() const {
    switch (ranking.rules.window_reduction) {
      case WindowReduction::mean:
        return reference::columns_of(weight_errors, ranking.scored);
      case WindowReduction::sum:
        return reference::columns_of(
            reference::accumulated_attention_errors(layer, ranking.rules.window,
                                                    implementation.arithmetic.window_attention),
            ranking.scored);
    }
    __builtin_unreachable();
  }
};

// Error bounds of the host's score per query head over its window, for the scored positions, before pooling.
Matrix unpooled_errors(const LayerView& layer, const TestedImplementation& implementation,
                       const reference::Ranking& ranking, const Matrix& weight_errors) {
  if (const ScoreRules score = rules_of(implementation.policy.score); score.change) {
    return reference::columns_of(
        reference::window_score_errors(layer, ranking.rules.window, *score.change, score.space,
                                       implementation.arithmetic.change_scores),
        ranking.scored);
  }
  return std::visit(AttentionScoreErrors{layer, implementation, ranking, weight_errors},
                    implementation.policy.host);
}

}  // namespace

PromptErrors::PromptErrors(const LayerView& layer, const TestedImplementation& implementation,
                           const PromptRecord& reference)
    : PromptErrors(layer, implementation, reference,
                   rules_of(implementation.policy.host, layer.prompt_tokens(), 0)) {}

PromptErrors::PromptErrors(const LayerView& layer, const TestedImplementation& implementation,
                           const PromptRecord& reference, const HostRules& rules) {
  if (!rules.ranks()) return;
  reference::LayerScores known(nullptr);
  ranking = reference::rank(layer, implementation.policy, rules, known);
  const reference::Arithmetic& arithmetic = implementation.arithmetic.window_attention;
  const int64_t group_size = layer.shape.group_size();
  const ScoreRules score_rules = rules_of(implementation.policy.score);
  const SelectionRules selection = rules_of(implementation.policy.selection);
  if (rules.scores_given ? selection.weighs_attention : !score_rules.change) {
    weights = reference::window_mean(known.attention(layer, ranking.rules.window), ranking.rules.window);
    weight_errors = reference::window_attention_errors(layer, ranking.rules.window, arithmetic);
  }
  head_score = reference::max_pool_errors(unpooled_errors(layer, implementation, ranking, weight_errors),
                                          ranking.rules.pool);
  score = rules.scores_given ? reference::given_errors(ranking.scores, arithmetic)
                             : reference::group_errors(ranking.head_scores, head_score, group_size,
                                                       score_rules.group, arithmetic);
  const std::optional<TwoStage>& options = selection.two_stage;
  if (!options) return;
  norms = reference::projected_value_norm_errors(layer.shape, layer.values, layer.output_projection,
                                                 options->norm, *reference.projected_value_norms,
                                                 implementation.arithmetic.norms(options->norm));
  const Matrix scored_norms = reference::columns_of(*reference.projected_value_norms, ranking.scored);
  const Matrix scored_norm_errors = reference::columns_of(norms, ranking.scored);
  stage_two_score = Matrix(layer.shape.kv_heads, ranking.rules.scored);
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    const auto group = [&](MatrixView rows) { return layer.shape.group_rows(rows, g); };
    const std::vector<double> errors = reference::stage_two_score_errors(
        group(ranking.head_scores), group(head_score), group(scored_norms), group(scored_norm_errors),
        options->epsilon, options->gqa, arithmetic);
    std::ranges::copy(errors, stage_two_score.row(g).begin());
  }
}

}  // namespace kvbound::sim
