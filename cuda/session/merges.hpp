// The merges of a layer's KV heads on the device, at the prompt's end and during decoding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

#include "cluster_merging.hpp"
#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "prompt_merging.hpp"
#include "scored_queries.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// reference::HeadMerging of all KV heads, for methods that form clusters.
///
/// A decode step calls enter after its entry was appended, observe after its queries attended, merge after entries were
/// evicted, and records at its end.
template <Storage T>
class Merges {
 public:
  /// decodes  whether the host evicts entries during decoding, which then merge, too
  Merges(const Merge& merge, const DeviceLayer<T>& layer, bool decodes)
      : merge_(merge),
        rules_(kvbound::rules_of(merge)),
        shape_(layer.shape),
        scale_(layer.scale),
        decodes_(decodes) {}

  /// Merges a layer's entries that are not kept into the cache. Waits.
  ///
  /// layer    the prompt, or at a rebuild all entries so far; merged keys are determined for its last query
  /// known    the prompt's scores; null at a rebuild: the last query's own scores are used, and predictions start anew
  /// kept     [kv_heads]: the positions that fill the cache
  /// returns  [kv_heads]: what is recorded, the whole cache included
  /// throws   NonFinite
  std::vector<HeadMerge> compress(const DeviceLayer<T>& layer, LayerScores<T>* known,
                                  const std::vector<std::vector<int64_t>>& kept, PromptTargets& targets,
                                  LayerCache<T>& cache, Queue& queue);

  /// Extends the state by the entry that was just appended.
  ///
  /// keys  [kv_heads, 1, head_dim]: the step's
  void enter(DeviceTensor<const T> keys, LayerCache<T>& cache, Queue& queue);
  /// Queues the update of the predicted scores.
  ///
  /// query   has attended over the cache
  /// tokens  up to this step
  void observe(const ScoredQuery<T>& query, LayerCache<T>& cache, int64_t tokens, Queue& queue);
  /// Queues the merge of the entries that were evicted.
  ///
  /// queries  [1, query_heads, head_dim]
  void merge(DeviceTensor<const T> queries, LayerCache<T>& cache, Queue& queue);
  /// The slots of the entries that the last merge changed.
  PositionLists changed() { return decoding_->kept_list(); }
  int64_t most_changed() const { return 1; }

  /// The last step's merges, and what each evicted entry merged into. Waits.
  struct Records {
    std::vector<int64_t> merged_into;  ///< [kv_heads], as in StepRecord
    std::vector<HeadMerge> merges;     ///< [kv_heads]
  };
  Records records(const std::vector<int64_t>& evicted, Queue& queue);

 private:
  // What decode steps need: the state of the cache's entries, and memory for one merge of each KV head.
  struct Decoding {
    Decoding(const Merge& merge, const LayerShape& shape, int64_t capacity);

    NearestKeys nearest() { return {nearest_index.data(), nearest_cosine.data(), 1}; }
    PositionLists kept_list() { return {kept.data(), count.data(), 1}; }
    MergedEntries merged() { return {kept_list(), {members.data(), 1, offsets.data(), 1}, kept.data()}; }

    AveragedScores averages;            // for methods that average scores
    DeviceMatrix predicted;             // [query_heads, capacity]: ln s^, likewise
    const float* log_scores = nullptr;  // [query_heads, capacity]: those that weight members; null: none
    int64_t tokens = 0;                 // up to the last step
    DeviceMatrix key_norms, new_norms;  // [kv_heads, capacity], [kv_heads, 1]
    DeviceMatrix nearest_cosine;        // [kv_heads, 1]
    Buffer<int64_t> nearest_index;      // [kv_heads]
    Buffer<int64_t> kept, count;        // [kv_heads]: the slot that an evicted entry merges into
    Buffer<int64_t> members, offsets;   // [kv_heads], [kv_heads, 2]
    Buffer<int64_t> merged_into;        // [kv_heads]
    DeviceMatrix kept_scores, member_scores;       // [query_heads, 1]: as before the merge
    StoredTensor<T> changed_keys, changed_values;  // [kv_heads, 1, head_dim]
    DeviceMatrix changed_votes;                    // [kv_heads, 1]
    ClusterMerging<T> merging;
  };

  bool averages() const { return rules_.averages(); }
  DeviceMatrix log_scores_of(const DeviceLayer<T>& layer, LayerScores<T>* known, Queue& queue) const;
  void begin_decoding(LayerScores<T>* known, const DeviceMatrix& merged_scores, const MergedEntries& merged,
                      int64_t tokens, LayerCache<T>& cache, Queue& queue);
  void predict(LayerCache<T>& cache, Queue& queue);
  void read_changes(LayerCache<T>& cache, Queue& queue);

  Merge merge_;
  MergeRules rules_;
  LayerShape shape_;
  double scale_;
  bool decodes_;
  std::optional<Decoding> decoding_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
