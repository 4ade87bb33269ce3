#include "cluster_selection.hpp"

#include <kvbound/cuda/primitives/loads_first.hpp>
#include <kvbound/cuda/primitives/team.hpp>

#include "radix_selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace cluster_selection {
namespace {

using namespace radix_selection;

constexpr int kBlocks = kTeamBlocks;
// Few, as each pass over a digit has four barriers, which wait for every warp, and as much work for each warp
// as for its keys. Only so many keys that registers do not suffice for have more threads.
template <int kKeys>
constexpr int kThreadsWith = kKeys <= 16 ? kBins : 2 * kBins;
constexpr int kMostKeys = static_cast<int>(kMostColumns / (kBlocks * 2 * kBins));  // of a thread

__host__ __device__ int of_block(int64_t cols) {
  return static_cast<int>(round_up(ceil_division(cols, kBlocks), 32));
}

// Columns of a block, of which a warp has 32 kKeys successive ones: lane l those that are l + 32 n behind the
// first one, and below end. Blocks begin with whole sectors.
template <int kKeys>
struct Columns {
  int first, end;

  __device__ explicit Columns(int64_t cols) {
    const int begin = cluster_rank() * of_block(cols);
    first = begin + warp() * 32 * kKeys + lane();
    end = min(begin + of_block(cols), static_cast<int>(cols));
  }
  __device__ int at(int n) const { return first + n * 32; }
  __device__ bool has(int n) const { return at(n) < end; }
};

struct ClusterShared : SearchShared {
  int* selected;  // [kWarps]: entries that a warp selects
  int* before;    // [kWarps]: those that earlier blocks select, in parts

  __host__ __device__ explicit ClusterShared(SharedMemory& memory)
      : SearchShared(memory, kBlocks),
        selected(memory.array<int>(kWarps)),
        before(memory.array<int>(kWarps)) {}
};

// The scores of the thread's columns. Up to 16 are loaded before any is used: for columns that the
// thread does not have the block's last one, so that no load waits for a condition. There are no
// registers for more addresses.
template <int kKeys>
struct Scores {
  float scores[kKeys];

  __device__ void load(const float* row, const Columns<kKeys>& columns) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      if constexpr (kKeys <= 16) {
        scores[n] = row[min(columns.at(n), columns.end - 1)];
      } else {
        scores[n] = columns.has(n) ? row[columns.at(n)] : NAN;
      }
    }
  }
};

// What is selected: bit n for the thread's n-th key; and the thread's part of the number
// selected in earlier blocks.
struct Selected {
  uint32_t bits;
  int before;
};

// The thread's keys. Columns that it does not have get NaN's, below all others, so that they are counted, but
// not among the k largest.
template <int kKeys>
struct Keys {
  uint32_t keys[kKeys];

  __device__ Keys(const Scores<kKeys>& of, const Columns<kKeys>& columns) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) keys[n] = columns.has(n) ? ordered_key(of.scores[n]) : kNanKey;
  }

  // Sets the status to 1 if a score is NaN.
  __device__ void tell_of_nan(const Columns<kKeys>& columns, int* status) const {
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

  // The keys of the k largest ranks of a row, of which every block has its own keys: by the digits of the
  // key, and where keys are equal by those of the index.
  __device__ Selected select(const Columns<kKeys>& columns, int k, const SearchShared& shared,
                             Exchange<kBlocks>& exchange) const {
    const auto each_key = [&](const auto& add) {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) add(true, keys[n]);
    };
    // That k is 0 is asked as late as it can be: it may still be in flight.
    const auto least = least_of_blocks<kBlocks, uint32_t>(each_key, max(k, 1), shared, exchange, 32);
    if (k == 0) return {0, 0};
    if (least.wanted == 0) return {reaching(columns, lowest_rank(least.number)), least.before};
    const auto each_index = [&](const auto& add) {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        add(columns.has(n) && keys[n] == least.number, reversed(columns.at(n)));
      }
    };
    const auto index =
        least_of_blocks<kBlocks, uint32_t>(each_index, least.wanted, shared, exchange, kIndexBits);
    return {reaching(columns, lowest_rank(least.number) | index.number), least.before + index.before};
  }

  // Bit n: the n-th key's rank is at least this one.
  __device__ uint32_t reaching(const Columns<kKeys>& columns, uint64_t least) const {
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const bool reaches = columns.has(n) && rank_of(keys[n], columns.at(n)) >= least;
      bits |= uint32_t{reaches} << n;
    }
    return bits;
  }
};

// Writes the columns that are selected, ascending, behind those of earlier blocks and of earlier warps.
template <int kKeys>
__device__ void write_ascending(const Selected& selected, const Columns<kKeys>& columns,
                                const SelectionResult& result, int64_t row, const ClusterShared& shared) {
  const int of_warp = warp_sum(__popc(selected.bits)), before_block = warp_sum(selected.before);
  if (lane() == 0) {
    shared.selected[warp()] = of_warp;
    shared.before[warp()] = before_block;
  }
  __syncthreads();
  int before = 0;
#pragma unroll
  for (int w = 0; w < kThreadsWith<kKeys> / 32; ++w)
    before += shared.before[w] + (w < warp() ? shared.selected[w] : 0);
  int64_t* next = result.indices + row * result.stride + before;
#pragma unroll
  for (int n = 0; n < kKeys; ++n) {
    const bool writes = (selected.bits >> n & 1) != 0;
    const unsigned writing = __ballot_sync(kAllLanes, writes);
    if (writes) next[__popc(writing & lanes_below())] = result.first + columns.at(n);
    next += __popc(writing);
  }
}

// The k largest scores of a row, or CriticalKV's two stages, by a cluster of eight blocks. Blocks
// exchange how often each digit occurs among their keys. By that they also know how many entries the
// blocks before them select.
//
//       row      | block 0 | block 1 | ... | block 7 |
//       lane l of a block's warp w has columns 32 kKeys w + l + 32 n
//       a digit:   each counts its keys -> sends the counts to all -> adds all counts and finds the digit
//
// grid       8 rows, in clusters of 8
// block      256; 512 for more than 32,768 columns
// shared     49,568 bytes
// registers  57-79, 117 with 32 keys; 57-86, 125 with two stages (sm_90a); no code for sm_80
// bytes      read: 4 cols a row, 8 with two stages; written: 8 k, and 8 stage_one_count if wanted; no FLOP
template <bool kTwoStages, int kKeys>
__global__ void __launch_bounds__(kThreadsWith<kKeys>, 1) select_in_cluster_kernel(Arguments p) {
  SharedMemory memory;
  const ClusterShared shared(memory);
  const int64_t row = Team<kBlocks>::row();
  const Columns<kKeys> columns(p.cols);
  const auto k = static_cast<int>(p.k[row]);
  const auto stage_one_count = static_cast<int>(kTwoStages ? p.stage_one_count[row] : 0);
  Exchange<kBlocks> exchange(shared);
  cluster_arrive_relaxed();
  Scores<kKeys> scores, stage_two;
  scores.load(p.scores + row * p.row_stride, columns);
  constexpr bool kLoadsBoth = kTwoStages && kKeys <= 16;  // more keep the registers busy
  if (kLoadsBoth) stage_two.load(p.stage_two + row * p.row_stride, columns);
  clear(shared.counters);
  loads_first();
  __syncthreads();
  cluster_wait();  // all blocks can be sent to
  Keys<kKeys> keys(scores, columns);
  if constexpr (kTwoStages) {
    keys.tell_of_nan(columns, p.selection.status);
    const Selected first = keys.select(columns, stage_one_count, shared, exchange);
    if (p.stage_one.indices) write_ascending<kKeys>(first, columns, p.stage_one, row, shared);
    if (!kLoadsBoth) stage_two.load(p.stage_two + row * p.row_stride, columns);
    keys = Keys<kKeys>(stage_two, columns);
    keys.put_first(first.bits);
  }
  keys.tell_of_nan(columns, p.selection.status);
  const Selected selected = keys.select(columns, k, shared, exchange);
  write_ascending<kKeys>(selected, columns, p.selection, row, shared);
}

template <int kKeys>
void launch_selection_of(const Arguments& arguments, int64_t rows, Stream stream) {
  const LaunchShape shape = teams<kBlocks>(rows, kThreadsWith<kKeys>, shared_bytes<ClusterShared>(), stream);
  if (arguments.stage_two) {
    launch<select_in_cluster_kernel<true, kKeys>>(shape, arguments);
  } else {
    launch<select_in_cluster_kernel<false, kKeys>>(shape, arguments);
  }
}

}  // namespace

bool can(int64_t rows, int64_t cols) {
  return cols > kShortRow && cols <= kMostColumns && rows <= INT32_MAX / kBlocks && device().has_clusters;
}

void launch_selection(const Arguments& arguments, int64_t rows, Stream stream) {
  if (rows == 0) return;
  const int64_t keys = ceil_division(of_block(arguments.cols), kBins);
  if (keys <= 4) {
    launch_selection_of<4>(arguments, rows, stream);
  } else if (keys <= 16) {
    launch_selection_of<16>(arguments, rows, stream);
  } else {
    launch_selection_of<kMostKeys>(arguments, rows, stream);
  }
}

}  // namespace cluster_selection
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
