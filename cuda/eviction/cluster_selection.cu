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

// Columns of a block, of which a thread has first + 1024 n below end. Blocks begin with whole sectors.
struct Columns {
  int first, end;

  __host__ __device__ static int of_block(int64_t cols) {
    return static_cast<int>(round_up(ceil_division(cols, kBlocks), 32));
  }
  __device__ explicit Columns(int64_t cols) {
    const int begin = cluster_rank() * of_block(cols);
    first = begin + static_cast<int>(threadIdx.x);
    end = min(begin + of_block(cols), static_cast<int>(cols));
  }
  __device__ int at(int n) const { return first + n * kThreads; }
  __device__ bool has(int n) const { return at(n) < end; }
};

// Other blocks also read `selected`.
struct ClusterShared : SearchShared {
  int* places;    // [kMostKeys, kWarps]: entries selected before a warp's n-th keys, in this block
  int* selected;  // [2]: entries selected in this block, of stage one and in all
  int* columns;   // [columns of a block]: those selected

  __host__ __device__ ClusterShared(SharedMemory& memory, int64_t cols)
      : SearchShared(memory, true),
        places(memory.array<int>(kMostKeys * kWarps)),
        selected(memory.array<int>(2)),
        columns(memory.array<int>(Columns::of_block(cols))) {}
};

// The thread's keys. Columns that it does not have get NaN's, below all others, so that they are counted, but not among the
// k largest.
template <int kKeys>
struct Keys {
  uint32_t keys[kKeys];

  __device__ Keys(const float* scores, const Columns& columns) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      keys[n] = columns.has(n) ? ordered_key(scores[columns.at(n)]) : kNanKey;
    }
  }

  // Sets the status to 1 if a score is NaN.
  __device__ void tell_of_nan(const Columns& columns, int* status) const {
    bool nan = false;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) nan |= columns.has(n) && keys[n] == kNanKey;
    if (nan && status) *status = 1;  // several threads may write, all of them 1
  }

  // The keys of which the bits are set, before all others.
  __device__ void put_first(uint32_t selected) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) keys[n] = selected >> n & 1 ? kFirstKey : keys[n];
  }

  // The k-th largest rank of a row, of which every block has its own keys: the digits of the key, and where keys are equal
  // those of the index.
  __device__ uint64_t least_rank(const Columns& columns, int64_t k, const SearchShared& shared,
                                 int& turn) const {
    if (k == 0) return ~uint64_t{0};
    const auto each_key = [&](const auto& add) {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) add(true, keys[n]);
    };
    const auto least = least_of_blocks<kBlocks, uint32_t>(each_key, k, shared, turn, 32);
    if (least.wanted == 0) return lowest_rank(least.number);
    const auto each_index = [&](const auto& add) {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        add(columns.has(n) && keys[n] == least.number, reversed(columns.at(n)));
      }
    };
    return lowest_rank(least.number) |
           least_of_blocks<kBlocks, uint32_t>(each_index, least.wanted, shared, turn, kIndexBits).number;
  }

  // Bit n: the n-th key's rank is at least this one.
  __device__ uint32_t selected(const Columns& columns, uint64_t least) const {
    uint32_t selected = 0;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const bool is = columns.has(n) && rank_of(keys[n], columns.at(n)) >= least;
      selected |= (is ? 1u : 0u) << n;
    }
    return selected;
  }
};

// Writes the columns whose n-th bit of `selected` is set, ascending: to shared memory, and from there by whole sectors.
//
// slot  of shared.selected, another one for each call
template <int kKeys>
__device__ void write_ascending(uint32_t selected, const Columns& columns, const SelectionResult& result,
                                int64_t row, int slot, const ClusterShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto votes = [selected](int n) {
    return __ballot_sync(kAllLanes, static_cast<int>(selected >> n & 1));
  };
#pragma unroll
  for (int n = 0; n < kKeys; ++n) {
    const unsigned voting = votes(n);
    if (lane() == 0) shared.places[n * kWarps + warp()] = __popc(voting);
  }
  __syncthreads();
  static_assert(kMostKeys * kWarps <= kThreads, "a thread has one place");
  const bool has_place = thread < kKeys * kWarps;
  const int mine = has_place ? shared.places[thread] : 0;
  const int through = prefix_sum(mine, shared.warp_totals);
  if (has_place) shared.places[thread] = through - mine;
  if (thread == kThreads - 1) shared.selected[slot] = through;
  cluster_sync();
  int before = 0;
  for (int rank = 0; rank < cluster_rank(); ++rank) before += map_shared(shared.selected, rank)[slot];
#pragma unroll
  for (int n = 0; n < kKeys; ++n) {
    const int place = shared.places[n * kWarps + warp()] + __popc(votes(n) & lanes_below());
    if (selected >> n & 1) shared.columns[place] = columns.at(n);
  }
  __syncthreads();
  int64_t* const indices = result.indices + row * result.stride + before;
  for (int i = thread; i < shared.selected[slot]; i += kThreads)
    indices[i] = result.first + shared.columns[i];
  __syncthreads();
}

// The k largest scores of a row, or CriticalKV's two stages, by a cluster of eight blocks. Blocks exchange how often each
// digit occurs among their keys, and how many entries they select.
//
//       row      | block 0 | block 1 | ... | block 7 |        key n of a block's thread t is its column 1024 n + t
//       a digit:   each counts its keys -> barrier of the cluster -> each adds the counts of all and finds the digit
//
// grid       8 rows, in clusters of 8
// block      1024
// shared     37,024 bytes, and 4 for each column of a block: 53,408 for 32,768 columns
// registers  40-56, 59-64 with two stages (sm_90a); no code for sm_80
// bytes      read: 4 cols a row, 8 with two stages; written: 8 k, and 8 stage_one_count if wanted; no FLOP
template <bool kTwoStages, int kKeys>
__global__ void __launch_bounds__(kThreads, 1) select_in_cluster_kernel(Arguments p) {
  SharedMemory memory;
  const ClusterShared shared(memory, p.cols);
  const int64_t row = blockIdx.x / kBlocks;
  const Columns columns(p.cols);
  int turn = 0;
  Keys<kKeys> keys(p.scores + row * p.row_stride, columns);
  keys.tell_of_nan(columns, p.selection.status);
  if constexpr (kTwoStages) {
    const uint64_t least_one = keys.least_rank(columns, p.stage_one_count[row], shared, turn);
    const uint32_t first = keys.selected(columns, least_one);
    if (p.stage_one.indices) write_ascending<kKeys>(first, columns, p.stage_one, row, 0, shared);
    keys = Keys<kKeys>(p.stage_two + row * p.row_stride, columns);
    keys.put_first(first);
    keys.tell_of_nan(columns, p.selection.status);
  }
  const uint64_t least = keys.least_rank(columns, p.k[row], shared, turn);
  write_ascending<kKeys>(keys.selected(columns, least), columns, p.selection, row, 1, shared);
  cluster_sync();  // no block returns while others read its shared memory
}

template <int kKeys>
void launch_selection_of(const Arguments& arguments, int64_t rows, Stream stream) {
  const LaunchShape shape = LaunchShape{extent(kBlocks * rows), extent(kThreads),
                                        shared_bytes<ClusterShared>(arguments.cols), stream}
                                .in_clusters(extent(kBlocks));
  if (arguments.stage_two) {
    launch<select_in_cluster_kernel<true, kKeys>>(shape, arguments);
  } else {
    launch<select_in_cluster_kernel<false, kKeys>>(shape, arguments);
  }
}

}  // namespace

bool can(int64_t rows, int64_t cols) {
  return cols > kLeastCols && rows <= INT32_MAX / kBlocks && device().compute_capability == 90;
}

void launch_selection(const Arguments& arguments, int64_t rows, Stream stream) {
  if (rows == 0) return;
  const int64_t keys = ceil_division(Columns::of_block(arguments.cols), kThreads);
  if (keys <= 4) {
    launch_selection_of<4>(arguments, rows, stream);
  } else if (keys <= 8) {
    launch_selection_of<8>(arguments, rows, stream);
  } else {
    launch_selection_of<kMostKeys>(arguments, rows, stream);
  }
}

}  // namespace cluster_selection
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
