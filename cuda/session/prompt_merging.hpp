// The clusters that merge at the prompt's end, or at a rebuild, for all KV heads of a layer, on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <kvbound/cuda/merging/merge_first.hpp>
#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "prompt_selection.hpp"
#include "queue.hpp"
#include "ranking.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The entries of a layer that are not kept, and the clusters that they form.
class PromptTargets {
 public:
  /// kept  [kv_heads]: how many of the entries fill the cache
  PromptTargets(std::span<const int64_t> kept, int64_t tokens, int64_t capacity);

  PositionLists leaving() { return {leaving_.data(), counts_.data(), stride_}; }
  Clusters clusters() { return {members_.data(), stride_, offsets_.data(), capacity_}; }
  /// The most entries of a head that leave.
  int64_t stride() const { return stride_; }

  /// Returns the members of every kept entry, by KV head, when they have been read.
  std::function<std::vector<std::vector<std::vector<int64_t>>>(const Arrived&)> read(Readback& reads) const;

 private:
  int64_t capacity_, stride_;
  Buffer<int64_t> leaving_, counts_;   // [kv_heads, stride], [kv_heads]
  Buffer<int64_t> members_, offsets_;  // [kv_heads, stride], [kv_heads, capacity + 1]
};

/// The roots of a prompt's candidates, with order=merge-first.
class PromptRoots {
 public:
  /// Finds the roots, and replaces the kept entries by those that the selection keeps of them. Waits.
  ///
  /// ranking  of the prompt
  /// kept     its budgets are read; its positions and counts are written
  template <Storage T>
  PromptRoots(const Ranking& ranking, const SimilarTarget& target, LayerScores<T>& known, Queue& queue,
              KeptEntries& kept);

  /// [kv_heads]: the positions that are kept.
  const std::vector<std::vector<int64_t>>& kept() const { return kept_; }
  /// The clusters of the roots that are kept.
  void form_targets(const PositionLists& kept, Queue& queue, PromptTargets& targets);
  /// Returns where every entry of each KV head belongs, HeadMerge::target_of, when it has been read.
  std::function<std::vector<std::vector<int64_t>>(const Arrived&)> read(Readback& reads) const;

 private:
  MergingCandidates candidates_;
  Buffer<int64_t> roots_;  // [kv_heads, candidates]
  DeviceMatrix sums_;      // [kv_heads, candidates]
  std::vector<std::vector<int64_t>> kept_;
};

/// Every entry that is not kept joins the cluster of the most similar kept entry:
/// reference::merge_targets with order=evict-first.
///
/// cache  filled with the layer's kept entries
template <Storage T>
void form_targets(const DeviceLayer<T>& layer, const SimilarTarget& target, LayerCache<T>& cache,
                  Queue& queue, PromptTargets& targets);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
