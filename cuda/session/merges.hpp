// The merges of a layer's KV heads on the device, at the prompt's end and during
// decoding, whatever the method.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "prompt_merging.hpp"
#include "queue.hpp"
#include "scored_queries.hpp"
#include "step_inputs.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A layer whose entries have been selected, and a cache that holds those that are kept.
template <Storage T>
struct SelectedLayer {
  const DeviceLayer<T>&
      layer;  ///< the prompt, or at a rebuild all entries so far; merges are made for its last query
  LayerScores<T>*
      known;  ///< the prompt's scores; null at a rebuild: predictions start anew, with the query's own
  const std::vector<int64_t>& counts;  ///< [kv_heads]: how many positions fill the cache
  /// [kv_heads]: these positions, known when the queue finishes
  const std::vector<std::vector<int64_t>>& kept;
  PromptRoots* roots;  ///< with order=merge-first; else null
};

/// reference::HeadMerging of all KV heads.
///
/// A decode step appends its entry with key_norms, and calls observe after its queries attended, and merge
/// after entries were evicted.
template <Storage T>
class Merges {
 public:
  virtual ~Merges() = default;

  /// Queues the merge of a layer's entries that are not kept into the cache.
  ///
  /// records  [kv_heads], when the queue finishes: what is recorded, the whole cache included;
  ///          NonFinite is thrown then
  virtual void compress(const SelectedLayer<T>& selected, LayerCache<T>& cache, Queue& queue,
                        std::vector<HeadMerge>& records) = 0;

  /// Those of several layers or requests together, copies of what each has; *this is one of them.
  ///
  /// parts     of the same method
  /// capacity  of the cache that is joined of theirs
  virtual std::unique_ptr<Merges> joined(std::span<Merges* const> parts, int64_t capacity,
                                         Queue& queue) const = 0;

  /// [kv_heads, capacity]: the lengths of the cache's keys, which receive those of
  /// appended ones; null: not needed.
  virtual float* key_norms() = 0;
  /// Queues the update of what merges depend on.
  ///
  /// query  has attended over the cache
  virtual void observe(const StepInput<T>& step, const ScoredQuery<T>& query, LayerCache<T>& cache,
                       Queue& queue) = 0;
  /// Queues the merge of the entries that were evicted.
  virtual void merge(const StepInput<T>& step, const ScoredQuery<T>& query, LayerCache<T>& cache,
                     Queue& queue) = 0;
  /// The slots of the entries whose values the last merge changed, at most `stride` of each KV head.
  virtual PositionLists changed() = 0;
  /// Reads a step's merges back, into `record`, which knows then what was evicted.
  virtual void record(Readback& reads, StepRecord& record) const = 0;
};

/// merge    not NoMerge
/// decodes  whether the host evicts entries during decoding, which then merge, too
template <Storage T>
std::unique_ptr<Merges<T>> make_merges(const Merge& merge, const DeviceLayer<T>& layer, bool decodes);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
