#include "cluster_selection.hpp"

#include "radix_selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace cluster_selection {
namespace {

using namespace radix_selection;

constexpr int kBlocks = 8;
constexpr int kMostKeys = static_cast<int>(kMostScores / (kBlocks * kThreads));  // of a thread
constexpr int64_t kLeastCols = 4096;  // with fewer columns, blocks would wait for each other more than work

// Columns of a block, of which a thread has first + 1024 n for n < keys, below end.
struct Columns {
  int64_t first, end;
  int keys;

  __host__ __device__ static int64_t of_block(int64_t cols) { return ceil_division(cols, kBlocks); }
  __host__ __device__ static int keys_of(int64_t cols) {
    return static_cast<int>(ceil_division(of_block(cols), kThreads));
  }
  __device__ explicit Columns(int64_t cols) : keys(keys_of(cols)) {
    const int64_t begin = cluster_rank() * of_block(cols);
    first = begin + threadIdx.x;
    end = min(begin + of_block(cols), cols);
  }
  __device__ int64_t at(int n) const { return first + static_cast<int64_t>(n) * kThreads; }
  __device__ bool has(int n) const { return at(n) < end; }
};

// Other blocks also read `selected`.
struct ClusterShared : SearchShared {
  int* places;              // [kMostKeys, kWarps]: entries selected before a warp's n-th keys, in this block
  int* selected;            // [2]: entries selected in this block, of stage one and in all
  uint32_t *keys, *others;  // [keys, kThreads]: of the scores, and of stage two's

  __host__ __device__ ClusterShared(SharedMemory& memory, int64_t cols, bool two_stages)
      : SearchShared(memory, true),
        places(memory.array<int>(kMostKeys * kWarps)),
        selected(memory.array<int>(2)),
        keys(memory.array<uint32_t>(Columns::keys_of(cols) * kThreads)),
        others(memory.array<uint32_t>(two_stages ? Columns::keys_of(cols) * kThreads : 0)) {}
};

// The thread's n-th key.
__device__ uint32_t& key_of(uint32_t* keys, int n) {
  return keys[n * kThreads + static_cast<int>(threadIdx.x)];
}

// The k-th largest rank of a row, of which every block has its own keys.
__device__ uint64_t least_rank(const Columns& columns, int64_t k, const ClusterShared& shared, int& turn) {
  const auto each = [&](const auto& add) {
    for (int n = 0; n < columns.keys; ++n)
      add(columns.has(n), rank_of(key_of(shared.keys, n), columns.at(n)));
  };
  return least_rank_of_blocks<kBlocks>(each, k, shared, turn, 32 + kIndexBits);
}

// Writes the columns whose n-th bit of `selected` is set, ascending. slot: of shared.selected, another one for each call.
__device__ void write_ascending(uint32_t selected, const Columns& columns, const SelectionResult& result,
                                int64_t row, int slot, const ClusterShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto votes = [selected](int n) {
    return __ballot_sync(kAllLanes, static_cast<int>(selected >> n & 1));
  };
  for (int n = 0; n < columns.keys; ++n) {
    const unsigned voting = votes(n);
    if (lane() == 0) shared.places[n * kWarps + warp()] = __popc(voting);
  }
  __syncthreads();
  static_assert(kMostKeys * kWarps <= kThreads, "a thread has one place");
  const bool has_place = thread < columns.keys * kWarps;
  const int mine = has_place ? shared.places[thread] : 0;
  const int through = prefix_sum(mine, shared.warp_totals);
  if (has_place) shared.places[thread] = through - mine;
  if (thread == kThreads - 1) shared.selected[slot] = through;
  cluster_sync();
  int before = 0;
  for (int rank = 0; rank < cluster_rank(); ++rank) before += map_shared(shared.selected, rank)[slot];
  int64_t* const indices = result.indices + row * result.stride + before;
  for (int n = 0; n < columns.keys; ++n) {
    const int place = shared.places[n * kWarps + warp()] + __popc(votes(n) & lanes_below());
    if (selected >> n & 1) indices[place] = result.first + columns.at(n);
  }
  __syncthreads();
}

// Writes the keys of the thread's scores.
__device__ void read_keys(const float* scores, const Columns& columns, uint32_t* keys) {
#pragma unroll 4
  for (int n = 0; n < columns.keys; ++n)
    key_of(keys, n) = columns.has(n) ? ordered_key(scores[columns.at(n)]) : kFirstKey;
}

// Sets the status to 1 if one of the thread's keys is NaN's.
__device__ void tell_of_nan(const Columns& columns, uint32_t* keys, int* status) {
  bool nan = false;
  for (int n = 0; n < columns.keys; ++n) nan |= key_of(keys, n) == kNanKey;
  if (nan && status) *status = 1;  // several threads may write, all of them 1
}

__device__ uint32_t selected_of(const Columns& columns, uint64_t least, const ClusterShared& shared) {
  uint32_t selected = 0;
  for (int n = 0; n < columns.keys; ++n) {
    const bool is = columns.has(n) && rank_of(key_of(shared.keys, n), columns.at(n)) >= least;
    selected |= (is ? 1u : 0u) << n;
  }
  return selected;
}

// The k largest scores of a row, or CriticalKV's two stages, by a cluster of eight blocks. Blocks exchange how often each
// digit occurs among their keys, and how many entries they select.
//
//       row      | block 0 | block 1 | ... | block 7 |        key n of a block's thread t is its column 1024 n + t
//       a digit:   each counts its keys -> barrier of the cluster -> each adds the counts of all and finds the digit
//
// grid       8 rows, in clusters of 8
// block      1024
// shared     51,360 bytes, and 4,096 ceil(cols / 8,192), twice with two stages
// registers  40, 46 with two stages (sm_90a); no code for sm_80
// bytes      read: 4 cols a row, 8 with two stages; written: 8 k, and 8 stage_one_count if wanted; no FLOP
template <bool kTwoStages>
__global__ void __launch_bounds__(kThreads, 1) select_in_cluster_kernel(Arguments p) {
  SharedMemory memory;
  const ClusterShared shared(memory, p.cols, kTwoStages);
  const int64_t row = blockIdx.x / kBlocks;
  const Columns columns(p.cols);
  int turn = 0;
  read_keys(p.scores + row * p.row_stride, columns, shared.keys);
  tell_of_nan(columns, shared.keys, p.selection.status);
  if constexpr (kTwoStages) {
    read_keys(p.stage_two + row * p.row_stride, columns, shared.others);
    const uint64_t least_one = least_rank(columns, p.stage_one_count[row], shared, turn);
    const uint32_t first = selected_of(columns, least_one, shared);
    if (p.stage_one.indices) write_ascending(first, columns, p.stage_one, row, 0, shared);
    for (int n = 0; n < columns.keys; ++n)
      key_of(shared.keys, n) = first >> n & 1 ? kFirstKey : key_of(shared.others, n);
    tell_of_nan(columns, shared.keys, p.selection.status);
  }
  const uint64_t least = least_rank(columns, p.k[row], shared, turn);
  write_ascending(selected_of(columns, least, shared), columns, p.selection, row, 1, shared);
  cluster_sync();  // no block returns while others read its shared memory
}

}  // namespace

bool can(int64_t rows, int64_t cols) {
  return cols > kLeastCols && rows <= INT32_MAX / kBlocks && device().compute_capability == 90;
}

void launch_selection(const Arguments& arguments, int64_t rows, Stream stream) {
  if (rows == 0) return;
  const bool two_stages = arguments.stage_two != nullptr;
  const LaunchShape shape = LaunchShape{extent(kBlocks * rows), extent(kThreads),
                                        shared_bytes<ClusterShared>(arguments.cols, two_stages), stream}
                                .in_clusters(extent(kBlocks));
  if (two_stages) {
    launch<select_in_cluster_kernel<true>>(shape, arguments);
  } else {
    launch<select_in_cluster_kernel<false>>(shape, arguments);
  }
}

}  // namespace cluster_selection
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
