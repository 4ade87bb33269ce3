#include "merge_targets.hpp"

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/eviction/radix_sort.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/team.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using radix_selection::kThreads;
using radix_selection::Shared;
using radix_sort::Sort;

struct LeftOutArguments {
  PositionLists kept;
  int64_t tokens;
  PositionLists others;
  uint8_t* marks;  // [kv_heads, tokens]: 1 for kept ones
};

// The entries of one KV head that are not kept.
//
// grid       kv_heads
// block      1024
// shared     32,912 bytes
// registers  38 (sm_90a), 34 (sm_80)
// bytes      read: 8 kept and 2 tokens; written: tokens and 8 for each entry that is left out
// no FLOP
__global__ void __launch_bounds__(kThreads, 1) entries_left_out_kernel(LeftOutArguments p) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared shared(memory, 0);
  const int64_t g = blockIdx.x, kept = p.kept.count[g];
  uint8_t* marks = p.marks + g * p.tokens;
  for (int64_t j = threadIdx.x; j < p.tokens; j += kThreads) marks[j] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < kept; i += kThreads) marks[p.kept.positions[g * p.kept.stride + i]] = 1;
  __syncthreads();
  radix_selection::write_ascending(
      p.tokens, [&](int64_t j) { return marks[j] == 0; }, {p.others.positions, p.others.stride}, g,
      shared.warp_totals);
  if (threadIdx.x == 0) p.others.count[g] = p.tokens - kept;
}

struct ClusterArguments {
  PositionLists leaving;
  NearestKeys nearest;
  double threshold;  // -infinity: all merge
  Clusters clusters;
  int64_t tokens;
  int passes;       // of the sort
  uint64_t* items;  // [kv_heads, 2, tokens]
};

__device__ bool is_similar(const NearestKeys& nearest, int64_t place, double threshold) {
  return nearest.index[place] >= 0 && static_cast<double>(nearest.cosine[place]) > threshold;
}

// An entry as it is sorted: its target in front; entries that are dropped come last.
__device__ uint64_t item_of(const ClusterArguments& p, int64_t g, int64_t i) {
  const int64_t place = g * p.nearest.stride + i, target = p.nearest.index[place];
  const bool merges = is_similar(p.nearest, place, p.threshold);
  return static_cast<uint64_t>(merges ? target : p.clusters.capacity) << 32 | static_cast<uint64_t>(i);
}

// The number of items with a smaller target.
__device__ int64_t items_before(const uint64_t* items, int64_t size, int64_t target) {
  int64_t first = 0, last = size;
  while (first < last) {
    const int64_t middle = (first + last) / 2;
    if (static_cast<int64_t>(items[middle] >> 32) < target) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

// The clusters of one KV head: a stable sort of the leaving entries by target, then a search for every
// target's first, by one block or a cluster of eight.
//
// grid       kBlocks kv_heads, in clusters of kBlocks
// block      1024
// shared     32,800 bytes; of kBlocks 8 49,200
// registers  63, of kBlocks 8 64 (sm_90a); 63 (sm_80, where kBlocks 8 has no code)
// bytes      read: 20 for each leaving entry; in the workspace 24 a pass and entry, and 8 log2(leaving) for
//            each kept entry; written: 8 for each merging and each kept entry
// no FLOP
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) form_clusters_kernel(ClusterArguments p) {
  begin_dependent_launch();
  SharedMemory memory;
  const typename Sort<kBlocks>::Shared shared(memory);
  Sort<kBlocks> sort(shared);
  using Blocks = Team<kBlocks>;
  const int64_t g = Blocks::row(), size = p.leaving.count[g];
  uint64_t* items = p.items + g * 2 * p.tokens;
  for (int64_t i = Blocks::thread(); i < size; i += Blocks::threads()) items[i] = item_of(p, g, i);
  items = sort.sort(items, items + p.tokens, size, p.passes);
  for (int64_t i = Blocks::thread(); i < size; i += Blocks::threads()) {
    if (static_cast<int64_t>(items[i] >> 32) == p.clusters.capacity) continue;
    p.clusters.members[g * p.clusters.stride + i] =
        p.leaving.positions[g * p.leaving.stride + static_cast<int64_t>(items[i] & 0xffffffffu)];
  }
  int64_t* offsets = p.clusters.offsets + g * (p.clusters.capacity + 1);
  for (int64_t target = Blocks::thread(); target <= p.clusters.capacity; target += Blocks::threads()) {
    offsets[target] = items_before(items, size, target);
  }
}

// Passes of 8 bits that a sort by targets 0 .. capacity takes.
int passes_of(int64_t capacity) {
  int passes = 1;
  while (capacity >> (passes * radix_sort::kDigitBits) > 0) ++passes;
  return passes;
}

}  // namespace

int64_t merge_targets_workspace(int64_t kv_heads, int64_t tokens) {
  return kv_heads * 2 * tokens * static_cast<int64_t>(sizeof(uint64_t));
}

void entries_left_out(const PositionLists& kept, int64_t kv_heads, int64_t tokens,
                      const PositionLists& others, Workspace workspace, Stream stream) {
  require_range("KV heads", kv_heads, 0, INT32_MAX);
  require_range("tokens", tokens, 0, kMostScores);
  require_workspace(workspace, merge_targets_workspace(kv_heads, tokens));
  if (kv_heads == 0) return;
  launch_dependent<entries_left_out_kernel>(
      {extent(kv_heads), extent(kThreads), shared_bytes<Shared>(0), stream},
      LeftOutArguments{kept, tokens, others, static_cast<uint8_t*>(workspace.data)});
}

void form_clusters(const PositionLists& leaving, const NearestKeys& nearest, const SimilarTarget& target,
                   int64_t kv_heads, int64_t tokens, const Clusters& clusters, Workspace workspace,
                   Stream stream) {
  require_range("KV heads", kv_heads, 0, INT32_MAX);
  require_range("tokens", tokens, 0, kMostScores);
  require_range("capacity of the clusters", clusters.capacity, 0, INT32_MAX - 1);
  require_workspace(workspace, merge_targets_workspace(kv_heads, tokens));
  if (kv_heads == 0) return;
  const ClusterArguments arguments{leaving,
                                   nearest,
                                   threshold_of(target),
                                   clusters,
                                   tokens,
                                   passes_of(clusters.capacity),
                                   static_cast<uint64_t*>(workspace.data)};
  launch_by_length(tokens, kShortRow, [&]<int kBlocks> {
    launch_dependent<form_clusters_kernel<kBlocks>>(
        teams<kBlocks>(kv_heads, kThreads, shared_bytes<typename Sort<kBlocks>::Shared>(), stream),
        arguments);
  });
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
