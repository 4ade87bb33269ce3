#include "evictions.hpp"

#include <span>

#include <kvbound/cuda/eviction/value_space.hpp>

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
  const auto keep = [&](const DeviceMatrix& of_prompt, DeviceMatrix& of_cache) {
    queue.run("compaction", [&] {
      compact_numbers({of_prompt.data(), heads, of_prompt.cols()}, layer_.shape.kv_heads,
                      kept.positions.data(), capacity, kept.counts.data(), {of_cache.data(), heads, capacity},
                      queue.stream());
    });
  };
  keep(ranking->head_scores, running_);
  if (!score_.change) return;
  changes_.emplace(layer_.shape, capacity);
  changes_->gram = known.gram(score_.space);
  keep(known.value_lengths(score_.space), changes_->lengths);
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
                rules_.step_update, score_.group, running_.data(), reduced_.data(), queue.stream());
}

template <Storage T>
void Evictions<T>::evict(LayerCache<T>& cache, int64_t newest, Queue& queue) {
  cuda::evict({rules_.sinks, rules_.recent, rules_.fills_recent, budgets_.data()}, cache.slots(),
              rules_.ranks() ? reduced_.data() : nullptr, newest, evicted_.data(), queue.status(),
              queue.stream());
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
