#include "selection.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "cluster_selection.hpp"
#include "radix_selection.hpp"
#include "radix_sort.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace radix_selection;
using radix_sort::kSortBits;
using radix_sort::sort_pass;

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
// registers  40 (sm_90a), 40 (sm_80)
// bytes      read: 4 cols a row; written: 8 k; keys are written once and read up to 10 times (4 cols each),
//            in shared memory or through the L2 cache
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

// An entry as it is sorted: the key's complement in front, so that ascending items are descending scores.
__device__ uint64_t item_of(uint32_t key, int64_t index) {
  return static_cast<uint64_t>(~key) << 32 | static_cast<uint64_t>(index);
}

// The k largest scores of one row, best first: select_top_kernel's selection, then four stable
// passes over its k entries.
//
// grid, block, shared: as select_top_kernel
// registers  62 (sm_90a), 58 (sm_80)
// bytes      select_top_kernel's; in the workspace 8 k to write the items, 24 k a pass and 8 k to read the
//            result; 16 k to read and write the indices once more
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

void require_selectable(int64_t rows, int64_t cols, int64_t row_stride, const Workspace& workspace) {
  require_range("rows", rows, 0, INT32_MAX);
  require_range("columns of the scores", cols, 0, kMostScores);
  require_range("row_stride of the scores", row_stride, cols, INT64_MAX);
  require_workspace(workspace, select_top_workspace(rows, cols));
}

template <void (*kernel)(SelectArguments)>
void launch_selection(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, const int64_t* k,
                      const SelectionResult& result, const Workspace& workspace, Stream stream) {
  require_selectable(rows, cols, row_stride, workspace);
  if (rows == 0) return;
  const Workspaces memory(workspace, rows, cols);
  const bool in_shared = keys_fit(cols);
  const SelectArguments arguments{scores,      cols, row_stride, k, result, in_shared ? nullptr : memory.keys,
                                  memory.items};
  launch<kernel>({extent(rows), extent(kThreads), shared_bytes<Shared>(in_shared ? cols : 0), stream},
                 arguments);
}

}  // namespace

int64_t select_top_workspace(int64_t rows, int64_t cols) {
  return keys_bytes(rows, cols) + rows * 2 * cols * static_cast<int64_t>(sizeof(uint64_t));
}

void select_top(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, const int64_t* k,
                const SelectionResult& result, Workspace workspace, Stream stream) {
  require_selectable(rows, cols, row_stride, workspace);
  if (cluster_selection::can(rows, cols)) {
    cluster_selection::launch_selection({scores, nullptr, cols, row_stride, k, nullptr, result, {}}, rows,
                                        stream);
    return;
  }
  launch_selection<select_top_kernel>(scores, rows, cols, row_stride, k, result, workspace, stream);
}

void rank_top(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, const int64_t* k,
              const SelectionResult& result, Workspace workspace, Stream stream) {
  launch_selection<rank_top_kernel>(scores, rows, cols, row_stride, k, result, workspace, stream);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
