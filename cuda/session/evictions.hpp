// The evictions of a layer's KV heads during decoding, on the device: their running scores,
// and what these follow from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/session.hpp>

#include "head_eviction.hpp"
#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "scored_queries.hpp"
#include "step_inputs.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// reference::HeadEviction of all KV heads, for hosts that evict.
///
/// A decode step calls score after its queries have attended, then evict.
template <Storage T>
class Evictions {
 public:
  /// budgets      [kv_heads]
  /// cache        just filled; values that merged are no longer the layer's
  /// head_scores  [query_heads, m], with which the kept entries' running scores begin; null: with 0. Not read
  ///              for hosts that rank no entries
  Evictions(const Policy& policy, std::span<const int64_t> budgets, const DeviceMatrix* head_scores,
            LayerCache<T>& cache, LayerScores<T>& known, Queue& queue);

  /// Of several layers or requests together, copies of what each has.
  ///
  /// cache  joined of theirs
  /// known  of their layers together
  Evictions(std::span<Evictions* const> parts, LayerCache<T>& cache, LayerScores<T>& known, Queue& queue);

  /// The change by which a step's entries are scored, if any.
  std::optional<Change> change() const { return changes_ ? score_.change : std::nullopt; }

  /// Queues what the step's scores follow from; the running scores are updated at the latest by the eviction.
  ///
  /// query  has attended over the cache, for change()
  void score(const StepInput<T>& step, LayerCache<T>& cache, ScoredQuery<T>& query, Queue& queue);
  /// Queues the eviction of an entry of every KV head that is over its budget.
  ///
  /// next     the step whose entries are then appended; null: none
  /// evicted  [kv_heads], device memory: receives the positions, -1 for none
  void evict(const StepInput<T>& step, const StepInput<T>* next, LayerCache<T>& cache, int64_t* evicted,
             Queue& queue);
  /// Queues what follows from the new values of merged entries; their running scores do not change.
  ///
  /// changed  their slots
  void revalue(const PositionLists& changed, LayerCache<T>& cache, Queue& queue);

 private:
  // What scores that measure a change need beside the running scores.
  struct Changes {
    Changes(const LayerShape& shape, int64_t capacity)
        : lengths(shape.query_heads, capacity),
          new_lengths(shape.query_heads, 1),
          contributions(shape.query_heads, capacity),
          measures(shape, 1) {}

    DeviceMatrix lengths;        // [query_heads, capacity]: squared lengths of the values
    DeviceMatrix new_lengths;    // [query_heads, 1]
    DeviceMatrix contributions;  // [query_heads, capacity]
    QueryMeasures measures;      // of the step's queries
    SpaceMatrices space;
  };

  // What the two stages of `critical` need beside the running scores.
  struct Stages {
    Stages(const LayerShape& shape, int64_t capacity, const TwoStage& two_stage)
        : options(two_stage),
          reduced(shape.kv_heads, capacity),
          norms(shape.query_heads, capacity),
          new_norms(shape.query_heads, 1) {}

    TwoStage options;
    ProjectedNorms<T> norms_of = {};
    DeviceMatrix reduced;    // [kv_heads, capacity]: running scores, reduced
    DeviceMatrix norms;      // [query_heads, capacity]: projected value norms
    DeviceMatrix new_norms;  // [query_heads, 1]
    Buffer<int64_t> counts;  // [capacity + 1]: of stage one, unless it is adaptive
    DeviceMatrix weights;    // [query_heads, capacity]: the step's attention weights, if it is adaptive
  };

  void allocate(const std::optional<TwoStage>& two_stage, int64_t capacity, LayerScores<T>& known,
                Queue& queue);
  void begin_changes(LayerCache<T>& cache, LayerScores<T>& known, Queue& queue);
  void begin_stages(LayerCache<T>& cache, LayerScores<T>& known, Queue& queue);
  void keep(const DeviceMatrix& of_prompt, LayerCache<T>& cache, DeviceMatrix& of_cache, Queue& queue) const;
  StepScores contributions(const StepInput<T>& step, LayerCache<T>& cache, ScoredQuery<T>& query,
                           Queue& queue);
  ScoreUpdate update(const UpdatedScores& updated) const;

  DeviceLayer<T> layer_;
  bool merges_;
  HostRules rules_;
  ScoreRules score_;
  Buffer<int64_t> budgets_;         // [kv_heads]
  DeviceMatrix running_;            // [query_heads, capacity]
  StepScores step_scores_;          // of the current step
  std::optional<Changes> changes_;  // for scores that measure a change
  std::optional<Stages> stages_;    // for selections whose stages also decide evictions
  StoredTensor<T> revalued_;        // [kv_heads, most, head_dim]: merged entries' values
  DeviceMatrix numbers_;            // [query_heads, most]: what follows from them
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
