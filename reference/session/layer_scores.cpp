#include "layer_scores.hpp"

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/greedy.hpp>
#include <kvbound/reference/eviction/window_logits.hpp>

namespace kvbound::reference {
namespace {

// The map's value for a key, computed by make() if absent; the map does not change if make() throws.
template <class Map, class Make>
const typename Map::mapped_type& known(Map& map, const typename Map::key_type& key, const Make& make) {
  const auto found = map.find(key);
  return found != map.end() ? found->second : map.emplace(key, make()).first->second;
}

}  // namespace

const Matrix& LayerScores::attention(const LayerView& layer, int64_t window) {
  return known(attention_sums_, window, [&] {
    return timed(times_, "window_attention", [&] { return window_attention_sums(layer, window); });
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
    std::vector<std::vector<int64_t>> orders(layer.shape.kv_heads);
    timed(times_, "removal_order", [&] {
      parallel_for(layer.shape.kv_heads,
                   [&](int64_t g) { orders[g] = removal_order(layer, g, window, candidates, candidates); });
    });
    return orders;
  });
}

const std::vector<ScoreEma>& LayerScores::predicted(const LayerView& layer, const PredictedScores& options) {
  return known(predicted_, {options.ema, options.scores, options.normalisation}, [&] {
    std::vector<ScoreEma> averages(layer.shape.kv_heads);
    timed(times_, "score_ema", [&] {
      parallel_for(layer.shape.kv_heads, [&](int64_t g) { averages[g] = prompt_ema(layer, g, options); });
    });
    return averages;
  });
}

}  // namespace kvbound::reference
