#include "selection.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "radix_selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace radix_selection;

struct SelectArguments {
  const float* scores;
  int64_t cols, row_stride;
  const int64_t* k;
  SelectionResult result;
  uint32_t* keys;   // [rows, cols]; null: they are in shared memory
  uint64_t* items;  // [rows, 2, cols]: what rank_top_kernel sorts
};

// Writes a row's keys and returns the smallest rank that is selected.
__device__ uint64_t select_row(const SelectArguments& p, int64_t row, uint32_t* keys, const Shared& shared) {
  const float* scores = p.scores + row * p.row_stride;
  write_keys(
      p.cols, [&](int64_t j) { return ordered_key(scores[j]); }, keys, p.result.status);
  __syncthreads();
  return least_rank_of_keys(keys, p.cols, p.k[row], shared);
}

// The k largest scores of one row, ascending.
//
// grid       rows
// block      1024
// shared     32,912 bytes, and 4 cols if the keys fit (else they are in the workspace)
// registers  40 (sm_90a), 47 (sm_80)
// bytes      read: 4 cols a row; written: 8 k; keys are written once and read up to 7 times (4 cols each), in shared
//            memory or through the L2 cache
// no FLOP
__global__ void __launch_bounds__(kThreads, 1) select_top_kernel(SelectArguments p) {
  SharedMemory memory;
  const Shared shared(memory, p.keys ? 0 : p.cols);
  const int64_t row = blockIdx.x;
  uint32_t* keys = p.keys ? p.keys + row * p.cols : shared.keys;
  const uint64_t least = select_row(p, row, keys, shared);
  write_ascending(
      p.cols, [&](int64_t j) { return rank_of(keys[j], j) >= least; }, p.result, row, shared.warp_totals);
}

// Ranking is a stable radix sort by 8 bits of the key at a time, least significant first.
constexpr int kSortBits = 8;
constexpr int kSortBins = 1 << kSortBits;
static_assert(kSortBins * kWarps == kCounters, "sorting counts where selecting does");

// An entry as it is sorted: the key's complement in front, so that ascending items are descending scores.
__device__ uint64_t item_of(uint32_t key, int64_t index) {
  return static_cast<uint64_t>(~key) << 32 | static_cast<uint64_t>(index);
}

__device__ int sort_bin(uint64_t item, int pass) {
  return static_cast<int>(item >> (32 + pass * kSortBits) & (kSortBins - 1));
}

// The part of `size` items that a warp counts and moves, in their order.
struct Segment {
  int64_t begin, end;
  __device__ explicit Segment(int64_t size) {
    const int64_t length = ceil_division(size, kThreads) * 32;
    begin = min(warp() * length, size);
    end = min(begin + length, size);
  }
};

// Replaces counters[bin, warp] by the number of items before this warp's first item in this bin.
__device__ void sum_counters(const Shared& shared) {
  constexpr int kEach = kCounters / kThreads;
  int* mine = shared.counters + static_cast<int>(threadIdx.x) * kEach;
  int total = 0;
  for (int i = 0; i < kEach; ++i) total += mine[i];
  int before = prefix_sum(total, shared.warp_totals) - total;
  for (int i = 0; i < kEach; ++i) {
    const int size = mine[i];
    mine[i] = before;
    before += size;
  }
  __syncthreads();
}

// The lanes among `active` that have this lane's bin.
__device__ unsigned peers_of(int bin, unsigned active) {
  unsigned peers = active;
  for (int bit = 0; bit < kSortBits; ++bit) {
    const bool set = (bin >> bit & 1) != 0;
    const unsigned same = __ballot_sync(kAllLanes, set);
    peers &= set ? same : ~same;
  }
  return peers;
}

__device__ void sort_pass(const uint64_t* from, uint64_t* to, int64_t size, int pass, const Shared& shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kCounters; i += kThreads) shared.counters[i] = 0;
  __syncthreads();
  const Segment segment(size);
  for (int64_t i = segment.begin + lane(); i < segment.end; i += 32) {
    atomicAdd(&shared.counters[sort_bin(from[i], pass) * kWarps + warp()], 1);
  }
  __syncthreads();
  sum_counters(shared);
  for (int64_t first = segment.begin; first < segment.end; first += 32) {
    const int64_t i = first + lane();
    const bool active = i < segment.end;
    const uint64_t item = active ? from[i] : 0;
    const int bin = sort_bin(item, pass);
    const unsigned peers = peers_of(bin, __ballot_sync(kAllLanes, active));
    int* next = &shared.counters[bin * kWarps + warp()];
    const int before = *next;
    __syncwarp();
    if (active) {
      to[before + __popc(peers & lanes_below())] = item;
      if ((peers & lanes_below()) == 0) *next = before + __popc(peers);
    }
    __syncwarp();
  }
  __syncthreads();
}

// The k largest scores of one row, best first: select_top_kernel's selection, then four stable passes over its k
// entries.
//
// grid, block, shared: as select_top_kernel
// registers  56 (sm_90a), 54 (sm_80)
// bytes      select_top_kernel's; in the workspace 8 k to write the items, 24 k a pass and 8 k to read the result; 16 k
//            to read and write the indices once more
// no FLOP
__global__ void __launch_bounds__(kThreads, 1) rank_top_kernel(SelectArguments p) {
  SharedMemory memory;
  const Shared shared(memory, p.keys ? 0 : p.cols);
  const int64_t row = blockIdx.x;
  uint32_t* keys = p.keys ? p.keys + row * p.cols : shared.keys;
  const uint64_t least = select_row(p, row, keys, shared);
  const int64_t k = p.k[row];
  int64_t* indices = p.result.indices + row * p.result.stride;
  write_ascending(
      p.cols, [&](int64_t j) { return rank_of(keys[j], j) >= least; }, p.result, row, shared.warp_totals);
  uint64_t* items = p.items + row * 2 * p.cols;
  uint64_t* others = items + p.cols;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    const int64_t index = indices[i] - p.result.first;
    items[i] = item_of(keys[index], index);
  }
  __syncthreads();
  for (int pass = 0; pass < 32 / kSortBits; ++pass) {
    sort_pass(pass % 2 ? others : items, pass % 2 ? items : others, k, pass, shared);
  }
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    indices[i] = p.result.first + static_cast<int64_t>(items[i] & 0xffffffffu);
  }
}

struct Workspaces {
  uint32_t* keys;
  uint64_t* items;

  Workspaces(const Workspace& workspace, int64_t rows, int64_t cols)
      : keys(static_cast<uint32_t*>(workspace.data)),
        items(reinterpret_cast<uint64_t*>(static_cast<unsigned char*>(workspace.data) +
                                          keys_bytes(rows, cols))) {}
};

void launch_selection(void (*kernel)(SelectArguments), const float* scores, int64_t rows, int64_t cols,
                      int64_t row_stride, const int64_t* k, const SelectionResult& result,
                      const Workspace& workspace, Stream stream) {
  require_range("rows", rows, 0, INT32_MAX);
  require_range("columns of the scores", cols, 0, kMostScores);
  require_range("row_stride of the scores", row_stride, cols, INT64_MAX);
  require_workspace(workspace, select_top_workspace(rows, cols));
  if (rows == 0) return;
  const Workspaces memory(workspace, rows, cols);
  const bool in_shared = keys_fit(cols);
  const SelectArguments arguments{scores,      cols, row_stride, k, result, in_shared ? nullptr : memory.keys,
                                  memory.items};
  launch({extent(rows), extent(kThreads), shared_bytes<Shared>(in_shared ? cols : 0), stream}, kernel,
         arguments);
}

}  // namespace

int64_t select_top_workspace(int64_t rows, int64_t cols) {
  return keys_bytes(rows, cols) + rows * 2 * cols * static_cast<int64_t>(sizeof(uint64_t));
}

void select_top(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, const int64_t* k,
                const SelectionResult& result, Workspace workspace, Stream stream) {
  launch_selection(select_top_kernel, scores, rows, cols, row_stride, k, result, workspace, stream);
}

void rank_top(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, const int64_t* k,
              const SelectionResult& result, Workspace workspace, Stream stream) {
  launch_selection(rank_top_kernel, scores, rows, cols, row_stride, k, result, workspace, stream);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
