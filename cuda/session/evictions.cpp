#include "evictions.hpp"

#include <span>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>

#include "append.hpp"
#include "compaction.hpp"
#include "joined_rows.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
Evictions<T>::Evictions(const Policy& policy, std::span<const int64_t> budgets,
                        const DeviceMatrix* head_scores, LayerCache<T>& cache, LayerScores<T>& known,
                        Queue& queue)
    : layer_(known.layer()),
      merges_(kvbound::rules_of(policy.merge).merges),
      rules_(kvbound::rules_of(policy.host, known.layer().prompt_tokens(), 0)),
      score_(kvbound::rules_of(policy.score)),
      budgets_(budgets, queue.stream()) {
  if (!rules_.ranks()) return;
  const SelectionRules selection = kvbound::rules_of(policy.selection);
  allocate(selection.in_decoding ? selection.two_stage : std::nullopt, cache.capacity(), known, queue);
  if (head_scores) {
    keep(*head_scores, cache, running_, queue);
  } else {
    running_.clear(queue.stream());
  }
  if (changes_) begin_changes(cache, known, queue);
  if (stages_) begin_stages(cache, known, queue);
}

template <Storage T>
Evictions<T>::Evictions(std::span<Evictions* const> parts, LayerCache<T>& cache, LayerScores<T>& known,
                        Queue& queue)
    : layer_(known.layer()),
      merges_(parts.front()->merges_),
      rules_(parts.front()->rules_),
      score_(parts.front()->score_),
      budgets_(layer_.shape.kv_heads) {
  join(parts, &Evictions::budgets_, *this, queue.stream());
  if (!rules_.ranks()) return;
  const auto& stages = parts.front()->stages_;
  allocate(stages ? std::optional(stages->options) : std::nullopt, cache.capacity(), known, queue);
  join(parts, &Evictions::running_, *this, queue.stream());
  const auto join_of = [&](auto of_eviction, auto array) {
    std::vector<decltype(&*(this->*of_eviction))> of_parts;
    for (Evictions* const part : parts) of_parts.push_back(&*(part->*of_eviction));
    join(of_parts, array, *(this->*of_eviction), queue.stream());
  };
  if (changes_) join_of(&Evictions::changes_, &Changes::lengths);
  if (stages_) join_of(&Evictions::stages_, &Stages::norms);
}

// What steps need beside the running scores, all but numbers of the cache's entries.
//
// two_stage  by which entries are evicted, if they are
template <Storage T>
void Evictions<T>::allocate(const std::optional<TwoStage>& two_stage, int64_t capacity, LayerScores<T>& known,
                            Queue& queue) {
  running_ = DeviceMatrix(layer_.shape.query_heads, capacity);
  if (score_.change) {
    changes_.emplace(layer_.shape, capacity);
    changes_->space = known.matrices(score_.space);
  }
  if (!two_stage) return;
  stages_.emplace(layer_.shape, capacity, *two_stage);
  stages_->norms_of = known.projected_norms(two_stage->norm);
  if (!two_stage->alpha) {
    stages_->weights = DeviceMatrix(layer_.shape.query_heads, capacity);
    return;
  }
  std::vector<int64_t> counts;
  for (int64_t k = 0; k <= capacity; ++k) counts.push_back(floor_of_product(*two_stage->alpha, k));
  stages_->counts = Buffer<int64_t>(std::span<const int64_t>(counts), queue.stream());
}

// Copies the kept entries' numbers of the prompt [query_heads, n] to the cache's [query_heads, capacity].
template <Storage T>
void Evictions<T>::keep(const DeviceMatrix& of_prompt, LayerCache<T>& cache, DeviceMatrix& of_cache,
                        Queue& queue) const {
  const PositionLists kept = cache.filled();
  queue.run("compaction", [&] {
    compact_numbers({of_prompt.data(), of_prompt.rows(), of_prompt.cols()}, layer_.shape.kv_heads,
                    kept.positions, kept.stride, kept.count,
                    {of_cache.data(), of_cache.rows(), of_cache.cols()}, queue.stream());
  });
}

template <Storage T>
void Evictions<T>::begin_changes(LayerCache<T>& cache, LayerScores<T>& known, Queue& queue) {
  if (!merges_) return keep(known.value_lengths(score_.space), cache, changes_->lengths, queue);
  queue.run("window_scores", [&] {
    squared_norms<T>(cache.values(), changes_->space.factor, layer_.shape.query_heads,
                     changes_->lengths.data(), queue.stream());
  });
}

template <Storage T>
void Evictions<T>::begin_stages(LayerCache<T>& cache, LayerScores<T>& known, Queue& queue) {
  if (merges_) {
    queue.run("projected_value_norms",
              [&] { stages_->norms_of(cache.values(), stages_->norms.data(), queue.stream()); });
  } else {
    keep(known.norms(stages_->options.norm), cache, stages_->norms, queue);
  }
}

template <Storage T>
StepScores Evictions<T>::contributions(const StepInput<T>& step, LayerCache<T>& cache, ScoredQuery<T>& query,
                                       Queue& queue) {
  const CacheView<T> view = cache.view();
  if (!changes_) return {nullptr, query.logits.data(), query.log_sum_exp.data(), view.log_votes};
  const int64_t heads = layer_.shape.query_heads;
  Changes& own = *changes_;
  squared_norms<T>(step.values(), own.space.factor, heads, own.new_lengths.data(), queue.stream());
  append_numbers(own.new_lengths.data(), heads, cache.slots(), own.lengths.data(), queue.stream());
  if (*score_.change != Change::value) {
    measure_queries<T>(*score_.change, view, query.view(), own.space.gram, heads, own.measures.view(),
                       queue.stream());
  }
  step_change_scores<T>(*score_.change, view, query.view(), own.measures.view(), own.lengths.data(), heads,
                        own.contributions.data(), queue.stream());
  return {own.contributions.data(), nullptr, nullptr, nullptr};
}

template <Storage T>
ScoreUpdate Evictions<T>::update(const UpdatedScores& updated) const {
  return {step_scores_, rules_.step_update, score_.group, updated};
}

template <Storage T>
void Evictions<T>::score(const StepInput<T>& step, LayerCache<T>& cache, ScoredQuery<T>& query,
                         Queue& queue) {
  if (!rules_.ranks()) return;
  step_scores_ = contributions(step, cache, query, queue);
  if (!stages_) return;
  update_scores(update({running_.data(), stages_->reduced.data(), stages_->weights.data()}), cache.slots(),
                layer_.shape.query_heads, queue.stream());
  stages_->norms_of(step.values(), stages_->new_norms.data(), queue.stream());
  append_numbers(stages_->new_norms.data(), layer_.shape.query_heads, cache.slots(), stages_->norms.data(),
                 queue.stream());
}

template <Storage T>
void Evictions<T>::evict(const StepInput<T>& step, const StepInput<T>* next, LayerCache<T>& cache,
                         int64_t* evicted, Queue& queue) {
  const EvictionRules rules{rules_.sinks, rules_.recent, rules_.fills_recent, budgets_.data()};
  const int64_t query_heads = layer_.shape.query_heads;
  const auto appended = next ? std::optional(cache.new_entries(*next)) : std::nullopt;
  if (!stages_) {
    const auto scores = rules_.ranks() ? std::optional(update({.running = running_.data()})) : std::nullopt;
    cuda::evict(rules, cache.slots(), scores, appended, query_heads, step.positions(), evicted,
                queue.status(), queue.stream());
    return;
  }
  const EvictionStages stages{running_.data(),         stages_->norms.data(),    stages_->counts.data(),
                              stages_->weights.data(), stages_->options.epsilon, stages_->options.gqa};
  evict_critical(rules, cache.slots(), stages_->reduced.data(), stages, appended, query_heads,
                 step.positions(), evicted, queue.status(), queue.stream());
}

template <Storage T>
void Evictions<T>::revalue(const PositionLists& changed, LayerCache<T>& cache, Queue& queue) {
  if (!changes_ && !stages_) return;
  const int64_t most = changed.stride;
  const LayerShape& shape = layer_.shape;
  if (revalued_.rows() != most) {
    revalued_ = StoredTensor<T>(shape.kv_heads, most, shape.head_dim);
    numbers_ = DeviceMatrix(shape.query_heads, most);
  }
  const auto scatter = [&](DeviceMatrix& to) {
    scatter_numbers({numbers_.data(), shape.query_heads, most}, shape.kv_heads, changed.positions,
                    changed.stride, changed.count, {to.data(), to.rows(), to.cols()}, queue.stream());
  };
  compact<T>(cache.values(), changed.positions, changed.stride, changed.count, revalued_.view(),
             queue.stream());
  if (changes_) {
    squared_norms<T>(revalued_.view(), changes_->space.factor, shape.query_heads, numbers_.data(),
                     queue.stream());
    scatter(changes_->lengths);
  }
  if (stages_) {
    stages_->norms_of(revalued_.view(), numbers_.data(), queue.stream());
    scatter(stages_->norms);
  }
}

template class Evictions<float>;
template class Evictions<Float16>;
template class Evictions<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
