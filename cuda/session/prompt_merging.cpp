#include "prompt_merging.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include <kvbound/cuda/merging/nearest_key.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using Members = std::vector<std::vector<std::vector<int64_t>>>;

}  // namespace

PromptTargets::PromptTargets(std::span<const int64_t> kept, int64_t tokens, int64_t capacity)
    : capacity_(capacity),
      stride_(tokens - std::ranges::min(kept)),
      leaving_(std::ssize(kept) * stride_),
      counts_(std::ssize(kept)),
      members_(std::ssize(kept) * stride_),
      offsets_(std::ssize(kept) * (capacity + 1)) {}

std::function<Members(const Arrived&)> PromptTargets::read(Readback& reads) const {
  return [members = reads.of(members_), offsets = reads.of(offsets_), heads = counts_.size(),
          stride = stride_, capacity = capacity_](const Arrived& arrived) {
    Members clusters(heads);
    for (int64_t g = 0; g < heads; ++g) {
      const auto own = arrived[members].begin() + g * stride;
      for (int64_t i = 0; i < capacity; ++i) {
        const int64_t* const range = arrived[offsets].data() + g * (capacity + 1) + i;
        clusters[g].emplace_back(own + range[0], own + range[1]);
      }
    }
    return clusters;
  };
}

template <Storage T>
PromptRoots::PromptRoots(const Ranking& ranking, const SimilarTarget& target, LayerScores<T>& known,
                         Queue& queue, KeptEntries& kept)
    : candidates_{ranking.always.sinks,
                  ranking.candidates,
                  known.layer().prompt_tokens(),
                  {ranking.candidate_scores(), known.layer().shape.kv_heads, ranking.scores.cols()}},
      roots_(known.layer().shape.kv_heads * ranking.candidates),
      sums_(known.layer().shape.kv_heads, ranking.candidates) {
  const DeviceLayer<T>& layer = known.layer();
  const int64_t heads = layer.shape.kv_heads, count = candidates_.count;
  DeviceTensor<const T> keys = layer.keys;
  keys.data += candidates_.first * keys.row_stride;
  keys.rows = count;
  DeviceMatrix norms(heads, count), cosines(heads, count);
  Buffer<int64_t> parents(heads * count);
  const std::vector<int64_t> none{-1};
  std::vector<int64_t> most;
  for (const int64_t budget : kept.budgets) most.push_back(budget - ranking.always.entries());
  const Buffer<int64_t> k(std::span<const int64_t>(most), queue.stream());
  const NearestKeys found{parents.data(), cosines.data(), count};
  const PositionLists lists{kept.positions.data(), kept.counts.data(), kept.positions.stride()};
  queue.run("merge_targets", [&] {
    key_norms<T>(keys, nullptr, norms.data(), queue.stream());
    nearest_better_keys<T>({keys, norms.data()}, {ranking.free_scores(), heads, ranking.scores.cols()}, found,
                           queue.stream());
    for (int64_t g = 0; g < heads; ++g) {  // those that are always kept do not merge
      for (const int64_t i : ranking.pinned) parents.upload(none, queue.stream(), g * count + i);
    }
    merge_first(candidates_, found, target, k.data(), {roots_.data(), sums_.data()}, lists, heads,
                queue.status(), queue.workspace(merge_first_workspace(heads, candidates_.tokens)),
                queue.stream());
  });
  Readback& reads = queue.read_back();
  queue.require_numbers(reads, "a sum of scores");
  reads.then([this, positions = reads.of(kept.positions), counts = reads.of(kept.counts)](
                 const Arrived& arrived) { kept_ = arrived.lists(positions, arrived[counts]); });
  reads.fetch(queue.pool());
  queue.finish();
}

void PromptRoots::form_targets(const PositionLists& kept, Queue& queue, PromptTargets& targets) {
  const int64_t heads = candidates_.scores.rows;
  queue.run("merge_targets", [&] {
    entries_left_out(kept, heads, candidates_.tokens, targets.leaving(),
                     queue.workspace(merge_targets_workspace(heads, candidates_.tokens)), queue.stream());
    root_clusters(candidates_, roots_.data(), kept, targets.leaving(), heads, targets.clusters(),
                  queue.workspace(merge_first_workspace(heads, candidates_.tokens)), queue.stream());
  });
}

std::function<std::vector<std::vector<int64_t>>(const Arrived&)> PromptRoots::read(Readback& reads) const {
  return [all = reads.of(roots_), own = candidates_](const Arrived& arrived) {
    std::vector<std::vector<int64_t>> targets;
    for (int64_t g = 0; g < own.scores.rows; ++g) {
      const std::span<const int64_t> roots = arrived[all].subspan(g * own.count, own.count);
      std::vector<int64_t>& of_head = targets.emplace_back(own.tokens);
      std::iota(of_head.begin(), of_head.end(), 0);
      for (int64_t i = 0; i < own.count; ++i) of_head[own.first + i] = own.first + roots[i];
    }
    return targets;
  };
}

template PromptRoots::PromptRoots(const Ranking&, const SimilarTarget&, LayerScores<float>&, Queue&,
                                  KeptEntries&);
template PromptRoots::PromptRoots(const Ranking&, const SimilarTarget&, LayerScores<Float16>&, Queue&,
                                  KeptEntries&);
template PromptRoots::PromptRoots(const Ranking&, const SimilarTarget&, LayerScores<Bfloat16>&, Queue&,
                                  KeptEntries&);

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
