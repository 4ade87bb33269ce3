#include "merge_first.hpp"

#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/team.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 1024;
constexpr int kEach = 128;
constexpr int kMostRounds = 29;
static_assert(int64_t{1} << (kMostRounds - 1) > kMostScores);

struct RootArguments {
  MergingCandidates candidates;
  NearestKeys parents;
  double threshold;
  const int64_t* k;
  int64_t* roots;
  int64_t* others;    // [kv_heads, count]: of every second round
  int64_t* all;       // [kv_heads, count]: the candidates themselves, as a list
  int64_t* count;     // [kv_heads]: its length
  float* cosines;     // [kv_heads, count]: above any threshold
  int64_t* selected;  // [kv_heads]: how many roots are kept
};

struct RootShared {
  int* by_warp;   // [kThreads / 32]
  int* of_block;  // [2], which other blocks read

  __host__ __device__ explicit RootShared(SharedMemory& memory)
      : by_warp(memory.array<int>(kThreads / 32)), of_block(memory.array<int>(2)) {}
};

// The roots of one KV head's candidates, and how many of them are kept, by one block or a cluster of eight:
// every round halves the chains, by following each candidate's link twice.
//
// grid       kBlocks kv_heads, in clusters of kBlocks
// block      1024
// shared     136 bytes
// registers  40, of kBlocks 8 48 (sm_90a); 40 (sm_80, where kBlocks 8 has no code)
// bytes      read: 12 for each candidate, 16 in each of up to log2(count) rounds, from the caches; written:
//            20, and 8 in each round; no FLOP
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) roots_kernel(RootArguments p) {
  using Blocks = Team<kBlocks>;
  SharedMemory memory;
  const RootShared shared(memory);
  int turn = 0;
  // The sum of a number of each thread of the team, which all have then written what they had to.
  const auto sum_of_all = [&](int own) {
    int sum[] = {block_sum<kThreads / 32>(own, shared.by_warp)};
    Blocks::sum(sum, shared.of_block, turn);
    return sum[0];
  };
  const int64_t g = Blocks::row(), size = p.candidates.count;
  int64_t* from = p.roots + g * size;
  int64_t* to = p.others + g * size;
  int own = 0;
  for (int64_t i = Blocks::thread(); i < size; i += Blocks::threads()) {
    const int64_t parent = p.parents.index[g * p.parents.stride + i];
    const bool merges =
        parent >= 0 && static_cast<double>(p.parents.cosine[g * p.parents.stride + i]) > p.threshold;
    from[i] = merges ? parent : i;
    own += from[i] == i;
    p.all[g * size + i] = i;
    p.cosines[g * size + i] = 1;
  }
  const int roots = sum_of_all(own);
  if (Blocks::thread() == 0) {
    p.count[g] = size;
    p.selected[g] = min(p.k[g], int64_t{roots});
  }
  bool moved = true;
  // 2^kMostRounds links are more than there are, unless parents form a cycle, which no
  // parents of higher scores do.
  for (int round = 0; round < kMostRounds && moved; ++round) {
    own = 0;
    for (int64_t i = Blocks::thread(); i < size; i += Blocks::threads()) {
      to[i] = from[from[i]];
      own += to[i] != from[i];
    }
    moved = sum_of_all(own) != 0;
    int64_t* const newer = to;
    to = from;
    from = newer;
  }
  // Both buffers hold the roots now, for the last round moved nothing.
  Blocks::sync();  // no block returns while others read its shared memory
}

struct SumArguments {
  MergingCandidates candidates;
  Clusters clusters;
  float* sums;
};

// The sums of roots' scores: a warp has 32 candidates, and sums the members of one root after the other.
//
// grid       (ceil(count / 128), kv_heads)
// block      128; no shared memory
// registers  32 (sm_90a), 42 (sm_80)
// bytes      read: 16 and 12 for each candidate; written: 4
// FLOP       1 for each candidate
__global__ void __launch_bounds__(kEach) root_sums_kernel(SumArguments p) {
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x;
  const bool exists = i < p.candidates.count;
  const int64_t* const offsets = p.clusters.offsets + g * (p.clusters.capacity + 1) + i;
  const int64_t begin = exists ? offsets[0] : 0, end = exists ? offsets[1] : 0;
  float own = kNothing;
  for (unsigned roots = __ballot_sync(kAllLanes, begin < end); roots; roots &= roots - 1) {
    const int root = __ffs(static_cast<int>(roots)) - 1;
    const int64_t last = __shfl_sync(kAllLanes, end, root);
    float sum = 0;
    for (int64_t place = __shfl_sync(kAllLanes, begin, root) + lane(); place < last; place += 32) {
      const int64_t member = p.clusters.members[g * p.clusters.stride + place];
      sum += p.candidates.scores.data[g * p.candidates.scores.row_stride + member];
    }
    sum = warp_sum(sum);
    if (lane() == root) own = sum;
  }
  if (exists) p.sums[g * p.candidates.count + i] = own;
}

struct KeptArguments {
  MergingCandidates candidates;
  const int64_t* selected;  // [kv_heads, count]: positions
  const int64_t* count;     // [kv_heads]
  PositionLists kept;
};

// Puts the entries that are no candidates around the selected roots.
//
// grid       (ceil(stride / 128), kv_heads)
// block      128; no shared memory
// registers  14 (sm_90a and sm_80)
// bytes      read: 16 for each kept entry; written: 8; no FLOP
__global__ void __launch_bounds__(kEach) kept_kernel(KeptArguments p) {
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x;
  const int64_t first = p.candidates.first, selected = p.count[g], behind = first + p.candidates.count;
  const int64_t all = p.candidates.tokens - p.candidates.count + selected;
  if (i == 0) p.kept.count[g] = all;
  if (i >= all) return;
  int64_t position = i;
  if (i >= first + selected) {
    position = behind + (i - first - selected);
  } else if (i >= first) {
    position = p.selected[g * p.candidates.count + i - first];
  }
  p.kept.positions[g * p.kept.stride + i] = position;
}

struct TargetArguments {
  MergingCandidates candidates;
  const int64_t* roots;
  PositionLists kept, leaving;
  int64_t* targets;  // [kv_heads, leaving.stride]
  float* cosines;
};

// The row of the kept root that a leaving entry belongs to: a thread has one entry.
//
// grid       (ceil(stride / 128), kv_heads)
// block      128; no shared memory
// registers  24 (sm_90a), 23 (sm_80)
// bytes      read: 16 for each leaving entry, 8 log2(kept) from the caches; written: 12; no FLOP
__global__ void __launch_bounds__(kEach) root_targets_kernel(TargetArguments p) {
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x;
  if (i >= p.leaving.count[g]) return;
  const int64_t candidate = p.leaving.positions[g * p.leaving.stride + i] - p.candidates.first;
  const int64_t root = p.candidates.first + p.roots[g * p.candidates.count + candidate];
  const int64_t* const kept = p.kept.positions + g * p.kept.stride;
  int64_t first = 0, last = p.kept.count[g];
  while (first < last) {
    const int64_t middle = (first + last) / 2;
    if (kept[middle] < root) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  const bool is_kept = first < p.kept.count[g] && kept[first] == root;
  p.targets[g * p.leaving.stride + i] = is_kept ? first : -1;
  p.cosines[g * p.leaving.stride + i] = 1;
}

// What the operations have in their workspace: arrays of one number for each KV head and token, and up to two
// more for each KV head.
struct Layout {
  int64_t numbers;  // bytes of such an array
  int64_t others, all, members, offsets, cosines, counts, selected, sort, bytes;

  Layout(int64_t kv_heads, int64_t tokens)
      : numbers(round_up(kv_heads * (tokens + 2) * static_cast<int64_t>(sizeof(int64_t)), 256)),
        others(0),
        all(numbers),
        members(2 * numbers),
        offsets(3 * numbers),
        cosines(4 * numbers),
        counts(5 * numbers),
        selected(6 * numbers),
        sort(7 * numbers),
        bytes(sort +
              std::max(merge_targets_workspace(kv_heads, tokens), select_top_workspace(kv_heads, tokens))) {}
};

void require_valid(const MergingCandidates& candidates, int64_t kv_heads) {
  require_range("tokens", candidates.tokens, 0, kMostScores);
  require_range("candidates", candidates.count, 0, candidates.tokens - candidates.first);
  require_equal("rows of scores", candidates.scores.rows, "KV heads", kv_heads);
}

}  // namespace

int64_t merge_first_workspace(int64_t kv_heads, int64_t tokens) { return Layout(kv_heads, tokens).bytes; }

void merge_first(const MergingCandidates& candidates, const NearestKeys& parents, const SimilarTarget& target,
                 const int64_t* k, const MergeRoots& roots, const PositionLists& kept, int64_t kv_heads,
                 int* status, Workspace workspace, Stream stream) {
  require_valid(candidates, kv_heads);
  require_range("stride of the parents", parents.stride, candidates.count, INT64_MAX);
  const Layout layout(kv_heads, candidates.tokens);
  require_workspace(workspace, layout.bytes);
  if (kv_heads == 0 || kept.stride == 0) return;
  auto* const memory = static_cast<std::byte*>(workspace.data);
  const auto at = [&](int64_t offset) { return reinterpret_cast<int64_t*>(memory + offset); };
  const int64_t count = candidates.count;
  auto* const cosines = reinterpret_cast<float*>(memory + layout.cosines);
  const Workspace rest{memory + layout.sort, layout.bytes - layout.sort};
  int64_t *const counts = at(layout.counts), *const kept_roots = counts + kv_heads;
  const RootArguments arguments{candidates,  parents,           threshold_of(target), k,
                                roots.roots, at(layout.others), at(layout.all),       counts,
                                cosines,     kept_roots};
  launch_by_length(count, kShortRow, [&]<int kBlocks> {
    launch<roots_kernel<kBlocks>>(teams<kBlocks>(kv_heads, kThreads, shared_bytes<RootShared>(), stream),
                                  arguments);
  });
  const Clusters by_root{at(layout.members), count, at(layout.offsets), count};
  form_clusters({at(layout.all), counts, count}, {roots.roots, cosines, count}, {std::nullopt}, kv_heads,
                count, by_root, rest, stream);
  if (count > 0) {
    launch<root_sums_kernel>({extent(ceil_division(count, kEach), kv_heads), extent(kEach), 0, stream},
                             SumArguments{candidates, by_root, roots.sums});
  }
  select_top(roots.sums, kv_heads, count, count, kept_roots,
             {at(layout.selected), count, status, candidates.first}, rest, stream);
  launch<kept_kernel>({extent(ceil_division(kept.stride, kEach), kv_heads), extent(kEach), 0, stream},
                      KeptArguments{candidates, at(layout.selected), kept_roots, kept});
}

void root_clusters(const MergingCandidates& candidates, const int64_t* roots, const PositionLists& kept,
                   const PositionLists& leaving, int64_t kv_heads, const Clusters& clusters,
                   Workspace workspace, Stream stream) {
  require_valid(candidates, kv_heads);
  require_range("stride of the leaving entries", leaving.stride, 0, candidates.tokens);
  const Layout layout(kv_heads, candidates.tokens);
  require_workspace(workspace, layout.bytes);
  if (kv_heads == 0) return;
  auto* const memory = static_cast<std::byte*>(workspace.data);
  auto* const targets = reinterpret_cast<int64_t*>(memory + layout.others);
  auto* const cosines = reinterpret_cast<float*>(memory + layout.cosines);
  if (leaving.stride > 0) {
    launch<root_targets_kernel>(
        {extent(ceil_division(leaving.stride, kEach), kv_heads), extent(kEach), 0, stream},
        TargetArguments{candidates, roots, kept, leaving, targets, cosines});
  }
  form_clusters(leaving, {targets, cosines, leaving.stride}, {std::nullopt}, kv_heads, candidates.tokens,
                clusters, {memory + layout.sort, layout.bytes - layout.sort}, stream);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
