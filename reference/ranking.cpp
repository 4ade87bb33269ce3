#include "ranking.hpp"

#include <algorithm>
#include <variant>

#include "critical_kv.hpp"
#include "greedy.hpp"
#include "h2o.hpp"
#include "parallel.hpp"
#include "snap_kv.hpp"
#include "tova.hpp"

namespace kvbound::reference {
namespace {

Matrix mean_over(const Matrix& sums, int64_t window) {
  Matrix mean = sums;
  for (int64_t h = 0; h < mean.rows(); ++h) {
    for (double& entry : mean.row(h)) entry /= static_cast<double>(window);
  }
  return mean;
}

// The score per query head over all n positions, as the host adds it up over its window; not pooled.
Matrix unpooled_scores(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                       LayerScores& known) {
  const int64_t window = ranking.rules.window;
  if (const std::optional<Change> change = change_of(policy.score)) {
    return known.changes(layer, window, *change, space_of(policy.score));
  }
  const bool adds_up = std::holds_alternative<H2o>(policy.host);
  return adds_up ? known.attention(layer, window) : ranking.attention_weights;
}

Matrix pooled(MatrixView scores, const Host& host) {
  const auto* snap_kv = std::get_if<SnapKv>(&host);
  return max_pool(scores, snap_kv ? snap_kv->pool : 1);
}

}  // namespace

const Matrix& LayerScores::attention(const LayerView& layer, int64_t window) {
  const auto [entry, is_new] = attention_.try_emplace(window);
  if (is_new) {
    entry->second = timed(times_, "window_attention", [&] { return accumulated_attention(layer, window); });
  }
  return entry->second;
}

const Matrix& LayerScores::changes(const LayerView& layer, int64_t window, Change change, Space space) {
  const auto [entry, is_new] = changes_.try_emplace({window, change, space});
  if (is_new) {
    entry->second =
        timed(times_, "window_scores", [&] { return window_scores(layer, window, change, space); });
  }
  return entry->second;
}

const Matrix& LayerScores::norms(const LayerView& layer, Norm norm) {
  const auto [entry, is_new] = norms_.try_emplace(norm);
  if (is_new) {
    entry->second = timed(times_, "projected_value_norms", [&] {
      return projected_value_norms(layer.shape, layer.values, layer.output_projection, norm);
    });
  }
  return entry->second;
}

const std::vector<std::vector<int64_t>>& LayerScores::removals(const LayerView& layer, int64_t window,
                                                               int64_t candidates, int64_t count) {
  std::vector<std::vector<int64_t>>& orders = removals_[window];
  if (orders.empty() || static_cast<int64_t>(orders.front().size()) < count) {
    orders.resize(static_cast<size_t>(layer.shape.kv_heads));
    timed(times_, "removal_order", [&] {
      parallel_for(layer.shape.kv_heads, [&](int64_t g) {
        orders[static_cast<size_t>(g)] = removal_order(layer, g, window, candidates, count);
      });
    });
  }
  return orders;
}

std::vector<int64_t> Ranking::positions_of(std::span<const int64_t> indices) const {
  std::vector<int64_t> positions;
  for (const int64_t i : indices) positions.push_back(first_candidate + i);
  return positions;
}

Ranking rank(const LayerView& layer, const Policy& policy, LayerScores& known) {
  const int64_t tokens = layer.prompt_tokens();
  Ranking ranking;
  ranking.rules = rules_of(policy.host, tokens, 0);
  for (int64_t i = 0; i < tokens; ++i) {
    if (ranking.rules.always_keeps(i, tokens - 1)) ranking.always_kept.push_back(i);
  }
  ranking.first_candidate = ranking.rules.sinks;
  ranking.candidates = tokens - static_cast<int64_t>(ranking.always_kept.size());
  ranking.attention_weights = mean_over(known.attention(layer, ranking.rules.window), ranking.rules.window);
  const Matrix unpooled = unpooled_scores(layer, policy, ranking, known);
  ranking.head_scores = pooled(unpooled.view().middle_cols(0, ranking.rules.scored), policy.host);
  const int64_t group_size = layer.shape.group_size();
  ranking.scores = change_of(policy.score) ? group_sum(ranking.head_scores, group_size)
                                           : group_mean(ranking.head_scores, group_size);
  return ranking;
}

}  // namespace kvbound::reference
