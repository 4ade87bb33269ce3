#include "evictions.hpp"

#include <span>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/core/selection_rules.hpp>

#include "append.hpp"
#include "compaction.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
Evictions<T>::Evictions(const Policy& policy, const Ranking* ranking, KeptEntries& kept,
                        LayerScores<T>& known, Queue& queue)
    : layer_(known.layer()),
      rules_(kvbound::rules_of(policy.host, known.layer().prompt_tokens(), 0)),
      score_(kvbound::rules_of(policy.score)),
      budgets_(std::span<const int64_t>(kept.budgets), queue.stream()),
      evicted_(layer_.shape.kv_heads) {
  if (!ranking) return;
  const int64_t capacity = kept.positions.stride(), heads = layer_.shape.query_heads;
  running_ = DeviceMatrix(heads, capacity);
  reduced_ = DeviceMatrix(layer_.shape.kv_heads, capacity);
  keep(ranking->head_scores, kept, running_, queue);
  if (score_.change) {
    changes_.emplace(layer_.shape, capacity);
    changes_->gram = known.gram(score_.space);
    keep(known.value_lengths(score_.space), kept, changes_->lengths, queue);
  }
  if (const SelectionRules selection = kvbound::rules_of(policy.selection); selection.in_decoding) {
    begin_stages(*selection.two_stage, kept, known, queue);
  }
}

// Copies the kept entries' numbers of the prompt [query_heads, n] to the cache's [query_heads, capacity].
template <Storage T>
void Evictions<T>::keep(const DeviceMatrix& of_prompt, KeptEntries& kept, DeviceMatrix& of_cache,
                        Queue& queue) const {
  queue.run("compaction", [&] {
    compact_numbers({of_prompt.data(), of_prompt.rows(), of_prompt.cols()}, layer_.shape.kv_heads,
                    kept.positions.data(), kept.positions.stride(), kept.counts.data(),
                    {of_cache.data(), of_cache.rows(), of_cache.cols()}, queue.stream());
  });
}

template <Storage T>
void Evictions<T>::begin_stages(const TwoStage& options, KeptEntries& kept, LayerScores<T>& known,
                                Queue& queue) {
  const int64_t capacity = kept.positions.stride();
  stages_.emplace(layer_.shape, capacity, options);
  keep(known.norms(options.norm), kept, stages_->norms, queue);
  if (!options.alpha) {
    stages_->weights = DeviceMatrix(layer_.shape.query_heads, capacity);
    return;
  }
  std::vector<int64_t> counts;
  for (int64_t k = 0; k <= capacity; ++k) counts.push_back(floor_of_product(*options.alpha, k));
  stages_->counts = Buffer<int64_t>(std::span<const int64_t>(counts), queue.stream());
}

template <Storage T>
StepScores Evictions<T>::contributions(const ScoredStep<T>& step, LayerCache<T>& cache, ScoredQuery<T>& query,
                                       Queue& queue) {
  const CacheView<T> view = cache.view();
  if (!changes_) return {nullptr, query.logits.data(), query.log_sum_exp.data(), view.log_votes};
  const int64_t heads = layer_.shape.query_heads;
  Changes& own = *changes_;
  squared_norms<T>(step.values, own.gram, heads, own.new_lengths.data(), queue.stream());
  append_numbers(own.new_lengths.data(), heads, cache.slots(), own.lengths.data(), queue.stream());
  if (*score_.change != Change::value) {
    query.measure(*score_.change, step.queries, view, layer_.scale, own.gram, own.measures.from(0), queue);
  }
  step_change_scores<T>(*score_.change, view, query.view(), own.measures.from(0), own.lengths.data(), heads,
                        own.contributions.data(), queue.stream());
  return {own.contributions.data(), nullptr, nullptr, nullptr};
}

template <Storage T>
void Evictions<T>::score(const ScoredStep<T>& step, LayerCache<T>& cache, ScoredQuery<T>& query,
                         Queue& queue) {
  if (!rules_.ranks()) return;
  update_scores(contributions(step, cache, query, queue), cache.slots(), layer_.shape.query_heads,
                rules_.step_update, score_.group,
                {running_.data(), reduced_.data(), stages_ ? stages_->weights.data() : nullptr},
                queue.stream());
  if (!stages_) return;
  projected_value_norms<T>(step.values, layer_.output_projection, stages_->options.norm,
                           stages_->new_norms.data(), queue.stream());
  append_numbers(stages_->new_norms.data(), layer_.shape.query_heads, cache.slots(), stages_->norms.data(),
                 queue.stream());
}

template <Storage T>
void Evictions<T>::evict(LayerCache<T>& cache, int64_t newest, Queue& queue) {
  const EvictionRules rules{rules_.sinks, rules_.recent, rules_.fills_recent, budgets_.data()};
  const float* scores = rules_.ranks() ? reduced_.data() : nullptr;
  if (!stages_) {
    cuda::evict(rules, cache.slots(), scores, newest, evicted_.data(), queue.status(), queue.stream());
    return;
  }
  const EvictionStages stages{running_.data(),         stages_->norms.data(),    stages_->counts.data(),
                              stages_->weights.data(), stages_->options.epsilon, stages_->options.gqa};
  evict_critical(rules, cache.slots(), scores, stages, layer_.shape.query_heads, newest, evicted_.data(),
                 queue.status(), queue.stream());
}

template <Storage T>
std::vector<int64_t> Evictions<T>::evicted(Queue& queue) {
  std::vector<int64_t> positions(evicted_.size());
  evicted_.download(positions, queue.stream());
  queue.require_numbers("score");
  return positions;
}

template class Evictions<float>;
template class Evictions<Float16>;
template class Evictions<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
