#include "head_profile.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/eviction/h2o.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

namespace kvbound::sim {
namespace {

// SnapKV's scores of all candidates, [kv_heads, candidates].
Matrix snap_kv_scores(const LayerView& prompt, int64_t window, int64_t pool, const Matrix& attention_sums) {
  const std::vector<int64_t> window_only(prompt.shape.kv_heads, window);
  return reference::snap_kv(prompt, {window, window}, pool, window_only,
                            [&](int64_t) -> const Matrix& { return attention_sums; })
      .scores;
}

void require_valid(const traces::Layer& layer, const HeadProfileOptions& options) {
  require_within("window", options.window, 1, layer.window_queries);
  require_within("budget", options.budget.entries(layer.prompt_tokens), 0, layer.prompt_tokens);
}

}  // namespace

int64_t HeadProfileOptions::selected(int64_t prompt_tokens) const {
  return std::max<int64_t>(0, budget.entries(prompt_tokens) - window);
}

LayerProfile layer_profile(const traces::Layer& layer, int64_t index, const HeadProfileOptions& options) {
  require_valid(layer, options);
  const LayerView prompt = layer.prompt();
  const Matrix sums = reference::accumulated_attention(prompt, options.window);
  const Matrix scores = snap_kv_scores(prompt, options.window, 1, sums),
               pooled = snap_kv_scores(prompt, options.window, options.pool, sums);
  const int64_t k = options.selected(layer.prompt_tokens), query_heads = layer.shape.query_heads;
  LayerProfile profile{index, std::vector<AttentionProfile>(query_heads),
                       std::vector<KvHeadProfile>(layer.shape.kv_heads)};
  const auto add_ties = [&](KvHeadProfile& head, int64_t pool, VectorView row) {
    head.ties.push_back({pool, Dtype::f64, score_ties(row, k)});
    head.ties.push_back({pool, Dtype::bf16, score_ties(rounded_to_bfloat16(row), k)});
  };
  reference::parallel_for(query_heads + layer.shape.kv_heads, [&](int64_t piece) {
    if (piece < query_heads) {
      profile.query_heads[piece] = attention_profile(layer, piece, options.sinks);
      return;
    }
    const int64_t g = piece - query_heads;
    KvHeadProfile& head = profile.kv_heads[g];
    head.values = effective_rank(layer.values.slice(g));
    add_ties(head, 1, scores.row(g));
    if (options.pool > 1) add_ties(head, options.pool, pooled.row(g));
  });
  return profile;
}

HeadProfiles head_profiles(const traces::Trace& trace, const std::vector<int64_t>& layers,
                           const HeadProfileOptions& options,
                           const std::function<void(int64_t, int64_t)>& progress) {
  HeadProfiles result{trace.info(), options, {}};
  for (const int64_t l : layers) {
    try {
      result.layers.push_back(layer_profile(trace.read_layer(l), l, options));
    } catch (const NonFinite& error) {
      throw TraceError(trace.info().path, -1, fmt::format("layers.{}", l),
                       fmt::format("its numbers are too large to compute with: {}", error.what()));
    }
    if (progress) progress(std::ssize(result.layers), std::ssize(layers));
  }
  return result;
}

}  // namespace kvbound::sim
