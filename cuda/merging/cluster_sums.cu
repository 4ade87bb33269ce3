#include "cluster_rows.hpp"

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace cluster_sums {
namespace {

constexpr int kScanned = 8;  // clusters that a thread looks at together
constexpr int kTeams = 2;    // of kRowsThreads threads: each has a part
constexpr int kPartThreads = kTeams * kRowsThreads;

struct Part {
  int from, members, slot;
};

template <Storage T, int kDims, int kHeads>
struct PartShared {
  static constexpr int kGroups = ClusterLanes<T, kDims>::kGroups;

  StagedEntries<kHeads> staged;
  float* sums;  // [kTeams, kGroups, kHeads, kDims], as lanes read them
  Part* parts;  // [most]
  int* count;

  __host__ __device__ PartShared(SharedMemory& memory, int64_t most)
      : staged(memory, kTeams * kGroups),
        sums(memory.array<float>(kTeams * kGroups * kHeads * kDims)),
        parts(memory.array<Part>(most)),
        count(memory.array<int>(1)) {}
};

// The parts that a block has at most: those in every gridDim.x-th slot.
__host__ __device__ int64_t most_parts(int64_t slots, int64_t blocks) { return ceil_division(slots, blocks); }

// Lists the parts of a cluster of the members from .. to - 1, as far as they are the block's.
template <Storage T, int kDims, int kHeads>
__device__ void list_parts_of(int from, int to, const PartShared<T, kDims, kHeads>& shared) {
  const auto blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int slot = from / kChunk;
  for (int part = (block - slot % blocks + blocks) % blocks; from + part * kPartMembers < to;
       part += blocks) {
    const int begin = from + part * kPartMembers;
    shared.parts[atomicAdd(shared.count, 1)] = {begin, min(kPartMembers, to - begin), slot + part};
  }
}

// Lists the block's parts, in any order: a warp looks at 256 successive clusters at a time, of which it reads
// the offsets by whole sectors. The whole block calls it.
//
//     lanes       0         1         ..  31
//     offsets     first     first + 1     first + 31
//                 .. + 32   .. + 33       .. + 63
//
// A lane has one cluster of each 32, which ends where the next lane's begins, that of lane 31 where
// lane 0's next one begins.
template <Storage T, int kDims, int kHeads>
__device__ void list_parts(const HeadClusters<T, kDims>& p, const PartShared<T, kDims, kHeads>& shared) {
  constexpr int kOfWarp = 32 * kScanned, kSectorBytes = 32;
  if (threadIdx.x == 0) *shared.count = 0;
  __syncthreads();
  const auto in_sector =
      static_cast<int>(reinterpret_cast<uintptr_t>(p.offsets) % kSectorBytes / sizeof(int64_t));
  for (int first = warp() * kOfWarp - in_sector; first < p.capacity; first += kScanned * kPartThreads) {
    // The last one is where the warp's clusters end. Where there is no cluster, two are equal.
    int offsets[kScanned + 1];
#pragma unroll
    for (int n = 0; n <= kScanned; ++n) {
      const int i = first + 32 * n + (n < kScanned ? lane() : 0);
      offsets[n] = static_cast<int>(p.offsets[min(max(i, 0), p.capacity)]);
    }
#pragma unroll
    for (int n = 0; n < kScanned; ++n) {
      const int end = __shfl_sync(kAllLanes, lane() == 0 ? offsets[n + 1] : offsets[n], (lane() + 1) % 32);
      if (end - offsets[n] > kChunk) list_parts_of(offsets[n], end, shared);
    }
  }
  __syncthreads();
}

// A team's part: a group of lanes sums an equal share of its members, and the shares are added in their
// order. The whole block calls it; a team that has no part with one of no members.
template <int kHeads, int kDims, Storage T>
__device__ void sum_part(const Sums<T>& p, int64_t g, const HeadClusters<T, kDims>& clusters,
                         const Part& part, int first_head, const PartShared<T, kDims, kHeads>& shared,
                         float* sum) {
  constexpr int kGroups = ClusterLanes<T, kDims>::kGroups;
  const int group = ClusterLanes<T, kDims>::group(), thread = static_cast<int>(threadIdx.x) % kRowsThreads;
  const int share = (part.members + kGroups - 1) / kGroups;
  const int before = group % kGroups * share;
  const int own = part.from + before, count = max(0, min(share, part.members - before));
  const HeadWeights weights(p, g, first_head);
  stage_entries<T, kDims>(
      shared.staged, count, [&](int e) { return static_cast<int>(clusters.members[own + e]); },
      [&](int e) { return weights.of_member<kHeads>(own + e); });
  LaneRow<T, kDims> sums[kHeads];
  add_staged(p.entries, clusters.lanes, shared.staged, count, sums);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) sums[h].store(shared.sums + (group * kHeads + h) * kDims);
  __syncthreads();
  const float* const shares = shared.sums + group / kGroups * kGroups * kHeads * kDims;
  const int numbers = part.members > 0 ? min(kHeads, clusters.heads - first_head) * kDims : 0;
  for (int n = thread; n < numbers; n += kRowsThreads) {
    float all = 0;
#pragma unroll
    for (int other = 0; other < kGroups; ++other) all += shares[other * kHeads * kDims + n];
    sum[n] = all;
  }
  __syncthreads();
}

// The parts of large clusters, for up to kHeads rows of weights at a time: a block has those of every
// gridDim.x-th slot, a team of 128 threads one of them at a time.
//
// grid       (about two blocks for each multiprocessor, divided by the KV heads; kv_heads)
// block      256
// shared     2 kGroups (272 + 4 kHeads (68 + kDims)) + 12 slots / gridDim.x bytes, of 8 groups for
//            16-bit types and head_dim 128
// registers  kHeads 1: 56-80, 4: 74-104 (sm_90a); 64-86, 80-108 (sm_80)
// bytes      read: for each member of a large cluster head_dim sizeof(T), 8 and 4 for each row of
//            weights; all offsets for each block, mostly from the L2 cache; written: 4 kDims for
//            each row of weights and part
// FLOP       2 head_dim for each row of weights and member of a large cluster
template <int kHeads, int kDims, Storage T>
__global__ void __launch_bounds__(kPartThreads, 2) sum_parts_kernel(Sums<T> p, float* parts) {
  begin_dependent_launch();
  SharedMemory memory;
  const PartShared<T, kDims, kHeads> shared(memory, most_parts(p.slots(), gridDim.x));
  const int64_t g = row_of_block();
  if (g >= p.entries.slices) return;
  const HeadClusters<T, kDims> clusters(p, g);
  list_parts(clusters, shared);
  const int count = *shared.count, team = static_cast<int>(threadIdx.x) / kRowsThreads;
#pragma unroll 1
  for (int first = 0; first < count; first += kTeams) {
    const Part part = first + team < count ? shared.parts[first + team] : Part{};
#pragma unroll 1
    for (int h = 0; h < clusters.heads; h += kHeads) {
      sum_part(p, g, clusters, part, h, shared, parts + p.part(g, part.slot, h));
    }
  }
}

template <int kHeads, int kDims, Storage T>
void launch_parts(const Sums<T>& sums, float* parts, Stream stream) {
  const int64_t kv_heads = sums.entries.slices;
  const int64_t blocks = std::min(sums.slots(), ceil_division(2 * device().multiprocessors, kv_heads));
  launch_dependent<sum_parts_kernel<kHeads, kDims, T>>(
      {extent_of_rows(blocks, kv_heads), extent(kPartThreads),
       shared_bytes<PartShared<T, kDims, kHeads>>(most_parts(sums.slots(), blocks)), stream},
      sums, parts);
}

}  // namespace

template <Storage T>
Sums<T> sums_of(DeviceTensor<const T> entries, const PositionLists& kept, const Clusters& clusters,
                const ClusterWeights& weights, Workspace workspace, Stream stream) {
  require_layout("entries", entries);
  require_range("head_dim", entries.cols, 1, kMostColumns);
  require_range("rows of weights", weights.rows, 1, INT32_MAX);
  require_range("stride of the clusters", clusters.stride, 0, INT32_MAX);
  require_range("capacity of the clusters", clusters.capacity, 0, INT32_MAX);
  require_range("weights of a KV head", weights.rows * std::max(clusters.stride, clusters.capacity), 0,
                INT32_MAX);
  require_range("rows of entries", entries.rows, 0, INT32_MAX);
  require_range("row_stride of entries", entries.row_stride, 0, INT32_MAX);
  require_workspace(workspace,
                    cluster_sums_workspace(entries.slices, weights.rows, clusters.stride, entries.cols));
  const auto parts = static_cast<float*>(workspace.data);
  const Sums<T> sums{entries, kept, clusters, weights, parts};
  if (clusters.stride <= kChunk) return sums;  // there is no large cluster
  by_dims(entries.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    if (weights.rows == 1) {
      launch_parts<1, kDims>(sums, parts, stream);
    } else {
      launch_parts<kHeadsAtOnce, kDims>(sums, parts, stream);
    }
  });
  return sums;
}

template Sums<float> sums_of(DeviceTensor<const float>, const PositionLists&, const Clusters&,
                             const ClusterWeights&, Workspace, Stream);
template Sums<Float16> sums_of(DeviceTensor<const Float16>, const PositionLists&, const Clusters&,
                               const ClusterWeights&, Workspace, Stream);
template Sums<Bfloat16> sums_of(DeviceTensor<const Bfloat16>, const PositionLists&, const Clusters&,
                                const ClusterWeights&, Workspace, Stream);

}  // namespace cluster_sums

int64_t cluster_sums_workspace(int64_t kv_heads, int64_t rows, int64_t stride, int64_t head_dim) {
  if (stride <= cluster_sums::kChunk) return 0;
  return kv_heads * (stride / cluster_sums::kChunk) * rows * dims_of(head_dim) *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
