#include "prompt_merging.hpp"

#include <algorithm>
#include <limits>

#include <kvbound/cuda/merging/nearest_key.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

int64_t most_leaving(const std::vector<std::vector<int64_t>>& kept, int64_t tokens) {
  int64_t fewest = tokens;
  for (const std::vector<int64_t>& positions : kept) fewest = std::min(fewest, std::ssize(positions));
  return tokens - fewest;
}

}  // namespace

PromptTargets::PromptTargets(const std::vector<std::vector<int64_t>>& kept, int64_t tokens, int64_t capacity)
    : capacity_(capacity),
      stride_(most_leaving(kept, tokens)),
      leaving_(std::ssize(kept) * stride_),
      counts_(std::ssize(kept)),
      members_(std::ssize(kept) * stride_),
      offsets_(std::ssize(kept) * (capacity + 1)) {}

std::vector<std::vector<std::vector<int64_t>>> PromptTargets::download(Stream stream) const {
  std::vector<int64_t> members(members_.size()), offsets(offsets_.size());
  members_.download(members, stream);
  offsets_.download(offsets, stream);
  std::vector<std::vector<std::vector<int64_t>>> clusters(counts_.size());
  for (int64_t g = 0; g < counts_.size(); ++g) {
    const auto own = members.begin() + g * stride_;
    for (int64_t i = 0; i < capacity_; ++i) {
      const int64_t* const range = offsets.data() + g * (capacity_ + 1) + i;
      clusters[g].emplace_back(own + range[0], own + range[1]);
    }
  }
  return clusters;
}

template <Storage T>
void form_targets(const DeviceLayer<T>& layer, const SimilarTarget& target, LayerCache<T>& cache,
                  Queue& queue, PromptTargets& targets) {
  const int64_t heads = layer.shape.kv_heads, tokens = layer.prompt_tokens();
  const PositionLists kept = cache.filled(), leaving = targets.leaving();
  DeviceMatrix norms(heads, tokens), kept_norms(heads, cache.capacity()), cosines(heads, leaving.stride);
  Buffer<int64_t> nearest(heads * leaving.stride);
  const NearestKeys found{nearest.data(), cosines.data(), leaving.stride};
  const Workspace workspace = queue.workspace(merge_targets_workspace(heads, tokens));
  queue.run("merge_targets", [&] {
    entries_left_out(kept, heads, tokens, leaving, workspace, queue.stream());
    key_norms<T>(layer.keys, nullptr, norms.data(), queue.stream());
    key_norms<T>(cache.keys(), kept.count, kept_norms.data(), queue.stream());
    nearest_keys<T>({layer.keys, norms.data()}, leaving.positions, leaving.stride, leaving.count,
                    {cache.keys(), kept_norms.data(), kept.count}, found, queue.stream());
    form_clusters(leaving, found, target, heads, tokens, targets.clusters(), workspace, queue.stream());
    synchronise(queue.stream());  // the norms and cosines are released
  });
}

template void form_targets(const DeviceLayer<float>&, const SimilarTarget&, LayerCache<float>&, Queue&,
                           PromptTargets&);
template void form_targets(const DeviceLayer<Float16>&, const SimilarTarget&, LayerCache<Float16>&, Queue&,
                           PromptTargets&);
template void form_targets(const DeviceLayer<Bfloat16>&, const SimilarTarget&, LayerCache<Bfloat16>&, Queue&,
                           PromptTargets&);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
