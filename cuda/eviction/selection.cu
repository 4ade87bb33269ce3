#include "selection.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/team.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "cluster_selection.hpp"
#include "radix_selection.hpp"
#include "radix_sort.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace radix_selection;
using radix_sort::Sort;

struct SelectArguments {
  const float* scores;
  int64_t cols, row_stride;
  const int64_t* k;
  SelectionResult result;
  uint32_t* keys;  // [rows, cols]; null: they are in shared memory
};

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
  const float* scores = p.scores + row * p.row_stride;
  write_keys(
      p.cols, [&](int64_t j) { return ordered_key(scores[j]); }, keys, p.result.status);
  __syncthreads();
  const uint64_t least = least_rank_of_keys(keys, p.cols, p.k[row], shared);
  write_ascending(
      p.cols, [&](int64_t j) { return rank_of(keys[j], j) >= least; }, p.result, row, shared.warp_totals);
}

struct RankArguments {
  const float* scores;
  int64_t cols, row_stride;
  const int64_t* k;
  SelectionResult result;
  uint64_t* items;  // [rows, 2, cols]
};

// An entry as it is sorted: the key's complement in front, so that ascending items are descending scores.
__device__ uint64_t item_of(uint32_t key, int64_t index) {
  return static_cast<uint64_t>(~key) << 32 | static_cast<uint64_t>(index);
}

// Ranks what select_top has selected, best first: four stable passes over a row's k entries, by one block or
// a cluster of eight.
//
// grid       kBlocks rows, in clusters of kBlocks
// block      1024
// shared     32,800 bytes; of kBlocks 8 49,200
// registers  64 (sm_90a); 64 (sm_80, where kBlocks 8 has no code)
// bytes      read: 12 k a row; in the workspace 8 k to write the items, 24 k a pass and 8 k to read the
//            result; written: 8 k
// no FLOP
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) rank_kernel(RankArguments p) {
  SharedMemory memory;
  const typename Sort<kBlocks>::Shared shared(memory);
  Sort<kBlocks> sort(shared);
  using Blocks = Team<kBlocks>;
  const int64_t row = Blocks::row(), k = p.k[row];
  const float* const scores = p.scores + row * p.row_stride;
  int64_t* const indices = p.result.indices + row * p.result.stride;
  uint64_t* items = p.items + row * 2 * p.cols;
  for (int64_t i = Blocks::thread(); i < k; i += Blocks::threads()) {
    const int64_t index = indices[i] - p.result.first;
    items[i] = item_of(ordered_key(scores[index]), index);
  }
  items = sort.sort(items, items + p.cols, k, 32 / kDigitBits);
  for (int64_t i = Blocks::thread(); i < k; i += Blocks::threads()) {
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
  if (rows == 0) return;
  const bool in_shared = keys_fit(cols);
  launch<select_top_kernel>(
      {extent(rows), extent(kThreads), shared_bytes<Shared>(in_shared ? cols : 0), stream},
      SelectArguments{scores, cols, row_stride, k, result,
                      in_shared ? nullptr : Workspaces(workspace, rows, cols).keys});
}

void rank_top(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, const int64_t* k,
              const SelectionResult& result, Workspace workspace, Stream stream) {
  select_top(scores, rows, cols, row_stride, k, result, workspace, stream);
  if (rows == 0) return;
  const RankArguments arguments{scores, cols, row_stride, k, result, Workspaces(workspace, rows, cols).items};
  launch_by_length(cols, kShortRow, [&]<int kBlocks> {
    launch<rank_kernel<kBlocks>>(
        teams<kBlocks>(rows, kThreads, shared_bytes<typename Sort<kBlocks>::Shared>(), stream), arguments);
  });
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
