#include "prompt_errors.hpp"

#include <algorithm>
#include <variant>

#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

namespace kvbound::sim {
namespace {

Matrix first_columns(const Matrix& matrix, int64_t columns) {
  Matrix result(matrix.rows(), columns);
  for (int64_t r = 0; r < matrix.rows(); ++r) {
    std::ranges::copy(matrix.row(r).first(static_cast<size_t>(columns)), result.row(r).begin());
  }
  return result;
}

// Of the host's score per query head over its window, all n positions, not pooled.
Matrix unpooled_errors(const LayerView& layer, const TestedImplementation& implementation,
                       const HostRules& rules, const Matrix& weight_errors) {
  const reference::Arithmetic& arithmetic = implementation.arithmetic.window_attention;
  const Policy& policy = implementation.policy;
  if (const auto change = reference::change_of(policy.score)) {
    return reference::window_score_errors(layer, rules.window, *change, reference::space_of(policy.score),
                                          arithmetic);
  }
  return std::holds_alternative<H2o>(policy.host)
             ? reference::accumulated_attention_errors(layer, rules.window, arithmetic)
             : weight_errors;
}

}  // namespace

const TwoStage* two_stage(const Selection& selection) {
  if (const auto* critical = std::get_if<Critical>(&selection)) return critical;
  return std::get_if<ThetaSweep>(&selection);
}

PromptErrors::PromptErrors(const LayerView& layer, const TestedImplementation& implementation,
                           const PromptRecord& reference) {
  if (std::holds_alternative<StreamingLlm>(implementation.policy.host)) return;
  reference::LayerScores known(nullptr);
  ranking = reference::rank(layer, implementation.policy, known);
  const reference::Arithmetic& arithmetic = implementation.arithmetic.window_attention;
  const int64_t scored = ranking.rules.scored, group_size = layer.shape.group_size();
  const bool by_change = reference::change_of(implementation.policy.score).has_value();
  if (!by_change) {
    weights = reference::window_mean(known.attention(layer, ranking.rules.window), ranking.rules.window);
    weight_errors = reference::window_attention_errors(layer, ranking.rules.window, arithmetic);
  }
  const auto* snap_kv = std::get_if<SnapKv>(&implementation.policy.host);
  head_score = reference::max_pool_errors(
      first_columns(unpooled_errors(layer, implementation, ranking.rules, weight_errors), scored),
      snap_kv ? snap_kv->pool : 1);
  score = by_change ? reference::group_sum_errors(ranking.head_scores, head_score, group_size, arithmetic)
                    : reference::group_mean_errors(ranking.head_scores, head_score, group_size, arithmetic);
  const TwoStage* options = two_stage(implementation.policy.selection);
  if (!options) return;
  norms = reference::projected_value_norm_errors(layer.shape, layer.values, layer.output_projection,
                                                 options->norm, *reference.projected_value_norms,
                                                 implementation.arithmetic.projected_value_norms);
  const Matrix scored_norms = first_columns(*reference.projected_value_norms, scored);
  const Matrix scored_norm_errors = first_columns(norms, scored);
  stage_two_score = Matrix(layer.shape.kv_heads, scored);
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    const auto group = [&](const Matrix& rows) {
      return rows.view().middle_rows(g * group_size, group_size);
    };
    const std::vector<double> errors = reference::stage_two_score_errors(
        group(ranking.head_scores), group(head_score), group(scored_norms), group(scored_norm_errors),
        options->epsilon, options->gqa, arithmetic);
    std::ranges::copy(errors, stage_two_score.row(g).begin());
  }
}

}  // namespace kvbound::sim
