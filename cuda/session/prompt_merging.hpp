// The clusters that merge at the prompt's end, or at a rebuild, for all KV heads of a layer, on the device.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "queue.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The entries of a layer that are not kept, and the clusters that they form.
class PromptTargets {
 public:
  /// kept  [kv_heads]: positions that fill the cache, ascending
  PromptTargets(const std::vector<std::vector<int64_t>>& kept, int64_t tokens, int64_t capacity);

  PositionLists leaving() { return {leaving_.data(), counts_.data(), stride_}; }
  Clusters clusters() { return {members_.data(), stride_, offsets_.data(), capacity_}; }
  /// The most entries of a head that leave.
  int64_t stride() const { return stride_; }

  /// The members of every kept entry, by KV head.
  std::vector<std::vector<std::vector<int64_t>>> download(Stream stream) const;

 private:
  int64_t capacity_, stride_;
  Buffer<int64_t> leaving_, counts_;   // [kv_heads, stride], [kv_heads]
  Buffer<int64_t> members_, offsets_;  // [kv_heads, stride], [kv_heads, capacity + 1]
};

/// Every entry that is not kept joins the cluster of the most similar kept entry: reference::merge_targets with
/// order=evict-first.
///
/// cache  filled with the layer's kept entries
template <Storage T>
void form_targets(const DeviceLayer<T>& layer, const SimilarTarget& target, LayerCache<T>& cache,
                  Queue& queue, PromptTargets& targets);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
