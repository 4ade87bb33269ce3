#include "ranking.hpp"

#include <algorithm>

#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/greedy.hpp>
#include <kvbound/reference/eviction/group_reduction.hpp>
#include <kvbound/reference/eviction/h2o.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/numerics/parallel.hpp>

namespace kvbound::reference {
namespace {

// The map's entry, made if it is not there; a failure leaves the map as it was.
template <class Map, class Make>
const typename Map::mapped_type& known(Map& map, const typename Map::key_type& key, const Make& make) {
  const auto found = map.find(key);
  return found != map.end() ? found->second : map.emplace(key, make()).first->second;
}

// The score per query head over all n positions, reduced over the window; not pooled.
Matrix unpooled_scores(const LayerView& layer, const ScoreRules& score, const HostRules& host,
                       LayerScores& known) {
  if (score.change) return known.changes(layer, host.window, *score.change, score.space);
  const Matrix& sums = known.attention(layer, host.window);
  switch (host.window_reduction) {
    case WindowReduction::mean:
      return window_mean(sums, host.window);
    case WindowReduction::sum:
      return sums;
  }
  __builtin_unreachable();
}

}  // namespace

const Matrix& LayerScores::attention(const LayerView& layer, int64_t window) {
  return known(attention_, window, [&] {
    return timed(times_, "window_attention", [&] { return accumulated_attention(layer, window); });
  });
}

const Matrix& LayerScores::changes(const LayerView& layer, int64_t window, Change change, Space space) {
  return known(changes_, {window, change, space}, [&] {
    return timed(times_, "window_scores", [&] { return window_scores(layer, window, change, space); });
  });
}

const Matrix& LayerScores::norms(const LayerView& layer, Norm norm) {
  return known(norms_, norm, [&] {
    return timed(times_, "projected_value_norms", [&] {
      return projected_value_norms(layer.shape, layer.values, layer.output_projection, norm);
    });
  });
}

const std::vector<std::vector<int64_t>>& LayerScores::removals(const LayerView& layer, int64_t window,
                                                               int64_t candidates) {
  return known(removals_, window, [&] {
    std::vector<std::vector<int64_t>> orders(static_cast<size_t>(layer.shape.kv_heads));
    timed(times_, "removal_order", [&] {
      parallel_for(layer.shape.kv_heads, [&](int64_t g) {
        orders[static_cast<size_t>(g)] = removal_order(layer, g, window, candidates, candidates);
      });
    });
    return orders;
  });
}

std::vector<int64_t> Ranking::positions_of(std::span<const int64_t> indices) const {
  std::vector<int64_t> positions;
  for (const int64_t i : indices) positions.push_back(first_candidate + i);
  return positions;
}

const std::vector<ScoreEma>& LayerScores::predicted(const LayerView& layer, const PredictedScores& options) {
  return known(predicted_, {options.ema, options.scores, options.normalisation}, [&] {
    std::vector<ScoreEma> averages(static_cast<size_t>(layer.shape.kv_heads));
    timed(times_, "score_ema", [&] {
      parallel_for(layer.shape.kv_heads,
                   [&](int64_t g) { averages[static_cast<size_t>(g)] = prompt_ema(layer, g, options); });
    });
    return averages;
  });
}

Ranking rank(const LayerView& layer, const Policy& policy, LayerScores& known) {
  return rank(layer, policy, rules_of(policy.host, layer.prompt_tokens(), 0), known);
}

Ranking rank(const LayerView& layer, const Policy& policy, const HostRules& rules, LayerScores& known) {
  const int64_t tokens = layer.prompt_tokens();
  Ranking ranking;
  ranking.rules = rules;
  ranking.always_kept = rules.always_kept(tokens);
  ranking.first_candidate = ranking.rules.sinks;
  ranking.candidates = tokens - static_cast<int64_t>(ranking.always_kept.size());
  const ScoreRules score = rules_of(policy.score);
  const Matrix unpooled = unpooled_scores(layer, score, rules, known);
  ranking.head_scores = max_pool(unpooled.view().middle_cols(0, rules.scored), rules.pool);
  ranking.scores = reduce_group(ranking.head_scores, layer.shape.group_size(), score.group);
  return ranking;
}

}  // namespace kvbound::reference
