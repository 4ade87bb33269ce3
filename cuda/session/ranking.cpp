#include "ranking.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <span>
#include <variant>

#include <kvbound/cuda/eviction/group_reduction.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/score_rules.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Numbers in device memory, rounded once; those of some columns are replaced.
DeviceMatrix uploaded(const Matrix& numbers, std::span<const int64_t> columns, float in_columns,
                      Stream stream) {
  std::vector<float> rounded(numbers.numbers().size());
  std::ranges::transform(numbers.numbers(), rounded.begin(),
                         [](double number) { return static_cast<float>(number); });
  for (int64_t r = 0; r < numbers.rows(); ++r) {
    for (const int64_t column : columns) rounded[r * numbers.cols() + column] = in_columns;
  }
  DeviceMatrix matrix(numbers.rows(), numbers.cols());
  matrix.upload(rounded, stream);
  return matrix;
}

// Ranks by scores that were given; a query head without scores of its own has its KV head's.
Ranking rank_by(const GivenLayer& given, const HostRules& rules, const LayerShape& shape, Stream stream) {
  Ranking ranking{rules, {}, given.score.cols(), {}, uploaded(given.score, {}, 0, stream), given.always_kept};
  Matrix head_score(shape.query_heads, given.score.cols());
  for (int64_t h = 0; h < shape.query_heads; ++h) {
    std::ranges::copy(
        given.head_score.rows() > 0 ? given.head_score.row(h) : given.score.row(shape.kv_head_of(h)),
        head_score.row(h).begin());
  }
  ranking.head_scores = uploaded(head_score, {}, 0, stream);
  if (given.always_kept.empty()) return ranking;
  ranking.first_scores = uploaded(given.score, given.always_kept, kInfinity, stream);
  ranking.last_scores = uploaded(given.score, given.always_kept, -kInfinity, stream);
  return ranking;
}

// A ranking by a score that measures a change, or by a host's own.
template <Storage T>
struct HostRanking {
  const ScoreRules score;
  const HostRules& rules;
  LayerScores<T>& known;
  Queue& queue;

  Ranking operator()(const SnapKv&) const { return of_window(); }
  Ranking operator()(const H2o&) const { return of_window(); }
  Ranking operator()(const Tova&) const { return of_window(); }
  Ranking operator()(const StreamingLlm&) const { throw InvalidPolicy("streaming-llm ranks no entries"); }
  Ranking operator()(const RandomHost&) const { throw InvalidPolicy("random ranks no entries"); }
  Ranking operator()(const Given& host) const {
    return rank_by(*host.layer, rules, known.layer().shape, queue.stream());
  }

 private:
  // By what the window's queries attend to, or lose.
  Ranking of_window() const {
    const LayerShape& shape = known.layer().shape;
    const int64_t tokens = known.layer().prompt_tokens();
    Ranking ranking{rules,
                    {rules.sinks, rules.recent},
                    tokens - rules.sinks - rules.recent,
                    {shape.query_heads, rules.scored},
                    {shape.kv_heads, rules.scored}};
    const DeviceMatrix& unpooled = score.change ? known.changes(rules.window, *score.change, score.space)
                                                : known.attention(rules.window, rules.window_reduction);
    queue.run(score.change ? "window_scores" : "window_attention", [&] {
      max_pool(unpooled.data(), shape.query_heads, rules.scored, tokens, rules.pool,
               ranking.head_scores.data(), queue.stream());
      reduce_group(ranking.head_scores.data(), shape.query_heads, rules.scored, shape.group_size(),
                   score.group, ranking.scores.data(), queue.stream());
    });
    return ranking;
  }
};

}  // namespace

void Ranking::put_first(DeviceMatrix& of_candidates, Stream stream) const {
  for (auto run = pinned.begin(); run != pinned.end();) {
    auto end = run + 1;
    while (end != pinned.end() && *end == *(end - 1) + 1) ++end;
    const std::vector<float> above(end - run, kInfinity);
    for (int64_t row = 0; row < of_candidates.rows(); ++row) of_candidates.upload(row, *run, above, stream);
    run = end;
  }
}

template <Storage T>
Ranking rank(const Policy& policy, const HostRules& rules, LayerScores<T>& known, Queue& queue) {
  assert(rules.ranks());
  return std::visit(HostRanking<T>{rules_of(policy.score), rules, known, queue}, policy.host);
}

template Ranking rank(const Policy&, const HostRules&, LayerScores<float>&, Queue&);
template Ranking rank(const Policy&, const HostRules&, LayerScores<Float16>&, Queue&);
template Ranking rank(const Policy&, const HostRules&, LayerScores<Bfloat16>&, Queue&);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
