#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "cluster_selection.hpp"
#include "critical_kv.hpp"
#include "radix_selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace radix_selection;

struct SelectCriticalArguments {
  const float* attention_scores;
  const float* stage_two_scores;
  int64_t cols, row_stride;
  const int64_t* k;
  const int64_t* stage_one_count;
  SelectionResult selection, stage_one;
  uint32_t* keys;  // [rows, cols]; null: they are in shared memory
};

// CriticalKV's two-stage selection in one row. Stage one selects by attention. Its entries then get
// kFirstKey, above all keys of scores, and the others the key of their stage-two score: the k largest of
// these keys are the entries of both stages.
//
// grid       rows
// block      1024
// shared     32,912 bytes, and 4 cols if the keys fit (else they are in the workspace)
// registers  40 (sm_90a), 40 (sm_80)
// bytes      read: 8 cols a row; written: 8 k, and 8 stage_one_count if wanted; keys are written twice and
//            read up to 21 times (4 cols each), in shared memory or through the L2 cache
// no FLOP
__global__ void __launch_bounds__(kThreads, 1) select_critical_kernel(SelectCriticalArguments p) {
  SharedMemory memory;
  const Shared shared(memory, p.keys ? 0 : p.cols);
  const int64_t row = blockIdx.x;
  const float* attention = p.attention_scores + row * p.row_stride;
  const float* stage_two = p.stage_two_scores + row * p.row_stride;
  uint32_t* keys = p.keys ? p.keys + row * p.cols : shared.keys;
  int* status = p.selection.status;

  write_keys(
      p.cols, [&](int64_t j) { return ordered_key(attention[j]); }, keys, status);
  __syncthreads();
  const uint64_t least_one = least_rank_of_keys(keys, p.cols, p.stage_one_count[row], shared);
  const auto in_stage_one = [&](int64_t j) { return rank_of(keys[j], j) >= least_one; };
  if (p.stage_one.indices) {
    write_ascending(p.cols, in_stage_one, p.stage_one, row, shared.warp_totals);
  }
  write_keys(
      p.cols, [&](int64_t j) { return in_stage_one(j) ? kFirstKey : ordered_key(stage_two[j]); }, keys,
      status);
  __syncthreads();
  const uint64_t least = least_rank_of_keys(keys, p.cols, p.k[row], shared);
  write_ascending(
      p.cols, [&](int64_t j) { return rank_of(keys[j], j) >= least; }, p.selection, row, shared.warp_totals);
}

}  // namespace

int64_t select_critical_workspace(int64_t rows, int64_t cols) { return keys_bytes(rows, cols); }

void select_critical(const float* attention_scores, const float* stage_two_scores, int64_t rows, int64_t cols,
                     int64_t row_stride, const int64_t* k, const int64_t* stage_one_count,
                     const SelectionResult& selection, const SelectionResult& stage_one, Workspace workspace,
                     Stream stream) {
  require_range("rows", rows, 0, INT32_MAX);
  require_range("columns of the scores", cols, 0, kMostScores);
  require_range("row_stride of the scores", row_stride, cols, INT64_MAX);
  require_workspace(workspace, select_critical_workspace(rows, cols));
  if (rows == 0) return;
  if (cluster_selection::can(rows, cols)) {
    cluster_selection::launch_selection(
        {attention_scores, stage_two_scores, cols, row_stride, k, stage_one_count, selection, stage_one},
        rows, stream);
    return;
  }
  const bool in_shared = keys_fit(cols);
  const SelectCriticalArguments arguments{attention_scores,
                                          stage_two_scores,
                                          cols,
                                          row_stride,
                                          k,
                                          stage_one_count,
                                          selection,
                                          stage_one,
                                          in_shared ? nullptr : static_cast<uint32_t*>(workspace.data)};
  launch<select_critical_kernel>(
      {extent(rows), extent(kThreads), shared_bytes<Shared>(in_shared ? cols : 0), stream}, arguments);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
