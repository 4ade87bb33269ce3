// The merges of a layer's KV heads on the device, at the prompt's end and during decoding, whatever the method.
#pragma once

#include <cstdint>
#include <memory>
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

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A layer whose entries have been selected, and a cache that holds those that are kept.
template <Storage T>
struct SelectedLayer {
  const DeviceLayer<T>&
      layer;  ///< the prompt, or at a rebuild all entries so far; merges are made for its last query
  LayerScores<T>*
      known;  ///< the prompt's scores; null at a rebuild: predictions start anew, with the query's own
  const std::vector<std::vector<int64_t>>& kept;  ///< [kv_heads]: the positions that fill the cache
  PromptRoots* roots;                             ///< with order=merge-first; else null
};

/// The merges of one decode step.
struct StepMerges {
  std::vector<int64_t> merged_into;  ///< [kv_heads], as in StepRecord
  std::vector<HeadMerge> merges;     ///< [kv_heads]
};

/// reference::HeadMerging of all KV heads.
///
/// A decode step calls enter after its entry was appended, observe after its queries attended, merge after entries were
/// evicted, and records at its end.
template <Storage T>
class Merges {
 public:
  virtual ~Merges() = default;

  /// Merges a layer's entries that are not kept into the cache. Waits.
  ///
  /// returns  [kv_heads]: what is recorded, the whole cache included
  /// throws   NonFinite
  virtual std::vector<HeadMerge> compress(const SelectedLayer<T>& selected, LayerCache<T>& cache,
                                          Queue& queue) = 0;

  /// Extends the state by the entry that was just appended.
  ///
  /// keys  [kv_heads, 1, head_dim]: the step's
  virtual void enter(DeviceTensor<const T> keys, LayerCache<T>& cache, Queue& queue) = 0;
  /// Queues the update of what merges depend on.
  ///
  /// query   has attended over the cache
  /// tokens  up to this step
  virtual void observe(const ScoredQuery<T>& query, LayerCache<T>& cache, int64_t tokens, Queue& queue) = 0;
  /// Queues the merge of the entries that were evicted.
  ///
  /// queries  [1, query_heads, head_dim]
  virtual void merge(DeviceTensor<const T> queries, LayerCache<T>& cache, Queue& queue) = 0;
  /// The slots of the entries whose values the last merge changed, at most `stride` of each KV head.
  virtual PositionLists changed() = 0;
  /// The last step's merges, given what was evicted [kv_heads]. Waits.
  virtual StepMerges records(const std::vector<int64_t>& evicted, Queue& queue) = 0;
};

/// merge    not NoMerge
/// decodes  whether the host evicts entries during decoding, which then merge, too
template <Storage T>
std::unique_ptr<Merges<T>> make_merges(const Merge& merge, const DeviceLayer<T>& layer, bool decodes);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
