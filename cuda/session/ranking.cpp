#include "ranking.hpp"

#include <cassert>
#include <variant>

#include <kvbound/cuda/eviction/group_reduction.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/score_rules.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

// The attention scores of a host, [query_heads, n], not pooled.
template <Storage T>
struct AttentionScores {
  const HostRules& rules;
  LayerScores<T>& known;

  const DeviceMatrix& operator()(const SnapKv&) const { return of_window(); }
  const DeviceMatrix& operator()(const H2o&) const { return of_window(); }
  const DeviceMatrix& operator()(const Tova&) const { return of_window(); }
  const DeviceMatrix& operator()(const StreamingLlm&) const {
    throw InvalidPolicy("streaming-llm ranks no entries");
  }
  const DeviceMatrix& operator()(const RandomHost&) const { throw InvalidPolicy("random ranks no entries"); }

 private:
  const DeviceMatrix& of_window() const { return known.attention(rules.window, rules.window_reduction); }
};

}  // namespace

template <Storage T>
Ranking rank(const Policy& policy, const HostRules& rules, LayerScores<T>& known, Queue& queue) {
  assert(rules.ranks());
  const LayerShape& shape = known.layer().shape;
  const int64_t tokens = known.layer().prompt_tokens();
  Ranking ranking{rules,
                  {rules.sinks, rules.recent},
                  tokens - rules.sinks - rules.recent,
                  {shape.query_heads, rules.scored},
                  {shape.kv_heads, rules.scored}};
  const ScoreRules score = rules_of(policy.score);
  const DeviceMatrix& unpooled = score.change ? known.changes(rules.window, *score.change, score.space)
                                              : std::visit(AttentionScores<T>{rules, known}, policy.host);
  queue.run(score.change ? "window_scores" : "window_attention", [&] {
    max_pool(unpooled.data(), shape.query_heads, rules.scored, tokens, rules.pool, ranking.head_scores.data(),
             queue.stream());
    reduce_group(ranking.head_scores.data(), shape.query_heads, rules.scored, shape.group_size(), score.group,
                 ranking.scores.data(), queue.stream());
  });
  return ranking;
}

template Ranking rank(const Policy&, const HostRules&, LayerScores<float>&, Queue&);
template Ranking rank(const Policy&, const HostRules&, LayerScores<Float16>&, Queue&);
template Ranking rank(const Policy&, const HostRules&, LayerScores<Bfloat16>&, Queue&);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
