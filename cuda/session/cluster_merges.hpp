// Merges of evicted entries into the kept entries of the most similar keys, on the device.
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
#include "merges.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Of methods that form clusters.
template <Storage T>
class ClusterMerges final : public Merges<T> {
 public:
  ClusterMerges(const Merge& merge, const DeviceLayer<T>& layer, bool decodes)
      : merge_(merge),
        rules_(kvbound::rules_of(merge)),
        shape_(layer.shape),
        scale_(layer.scale),
        decodes_(decodes) {}
  /// The same method for another shape.
  ClusterMerges(const ClusterMerges& other, const LayerShape& shape)
      : merge_(other.merge_),
        rules_(other.rules_),
        shape_(shape),
        scale_(other.scale_),
        decodes_(other.decodes_) {}

  void compress(const SelectedLayer<T>& selected, LayerCache<T>& cache, Queue& queue,
                std::vector<HeadMerge>& records) override;
  std::unique_ptr<Merges<T>> joined(std::span<Merges<T>* const> parts, int64_t capacity,
                                    Queue& queue) const override;
  float* key_norms() override { return decoding_->key_norms.data(); }
  void observe(const StepInput<T>& step, const ScoredQuery<T>& query, LayerCache<T>& cache,
               Queue& queue) override;
  void merge(const StepInput<T>& step, const ScoredQuery<T>& query, LayerCache<T>& cache,
             Queue& queue) override;
  PositionLists changed() override { return decoding_->kept_list(); }
  void record(Readback& reads, StepRecord& record) const override;

 private:
  // What decode steps need: the state of the cache's entries, and memory for one merge of each KV head.
  struct Decoding {
    Decoding(const Merge& merge, const LayerShape& shape, int64_t capacity);

    NearestKeys nearest() { return {nearest_index.data(), nearest_cosine.data(), 1}; }
    PositionLists kept_list() { return {kept.data(), count.data(), 1}; }
    MergedEntries merged() { return {kept_list(), {members.data(), 1, offsets.data(), 1}, kept.data()}; }

    AveragedScores averages;                       // for methods that average scores
    DeviceMatrix predicted;                        // [query_heads, capacity]: ln s^, likewise
    DeviceMatrix key_norms;                        // [kv_heads, capacity]
    DeviceMatrix nearest_cosine;                   // [kv_heads, 1]
    Buffer<int64_t> nearest_index;                 // [kv_heads]
    Buffer<int64_t> kept, count;                   // [kv_heads]: the slot that an evicted entry merges into
    Buffer<int64_t> members, offsets;              // [kv_heads], [kv_heads, 2]
    Buffer<int64_t> merged_into;                   // [kv_heads]
    DeviceMatrix kept_scores, member_scores;       // [query_heads, 1]: as before the merge
    StoredTensor<T> changed_keys, changed_values;  // [kv_heads, 1, head_dim]
    DeviceMatrix changed_votes;                    // [kv_heads, 1]
    ClusterMerging<T> merging;
  };

  bool averages() const { return rules_.averages(); }
  void record_prompt(const SelectedLayer<T>& selected, const PromptTargets& targets,
                     const DeviceMatrix& scores, const ClusterMerging<T>& merging, const LayerCache<T>& cache,
                     Readback& reads, std::vector<HeadMerge>& records) const;
  Buffer<float> log_seen(int64_t tokens, Queue& queue) const;
  DeviceMatrix log_scores_of(const DeviceLayer<T>& layer, LayerScores<T>* known, Queue& queue) const;
  void begin_decoding(const SelectedLayer<T>& selected, const DeviceMatrix& merged_scores,
                      const MergedEntries& merged, LayerCache<T>& cache, Queue& queue);
  const float* predicted(const ScoredQuery<T>& query) const;
  void keep_changes(const float* log_scores, const StepInput<T>& step, LayerCache<T>& cache, Queue& queue);

  Merge merge_;
  MergeRules rules_;
  LayerShape shape_;
  double scale_;
  bool decodes_;
  std::optional<Decoding> decoding_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
