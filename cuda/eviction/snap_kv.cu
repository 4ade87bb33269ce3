// SnapKV's and H2O's scores: the choice of kernels, and what both have in common.
#include "snap_kv.hpp"

#include <numbers>

#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/row_fragments.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/window/snap_kv_kernels.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace snap_kv_kernels;
using window_tiles::Window;

constexpr int kJoinWarps = 8;
constexpr int kPoolThreads = 128;

struct JoinShared {
  float* by_warp;  // [kJoinWarps, 32]

  __host__ __device__ explicit JoinShared(SharedMemory& memory)
      : by_warp(memory.array<float>(kJoinWarps * 32)) {}
};

// Joins the numbers that the warps of a block have for each of 32 queries, in the warps'
// order; all threads call it.
template <class Join>
__device__ float join_warps(float number, float* by_warp, const Join& join) {
  __syncthreads();  // none reads the previous numbers any more
  by_warp[threadIdx.x] = number;
  __syncthreads();
  number = by_warp[lane()];
  for (int w = 1; w < kJoinWarps; ++w) number = join(number, by_warp[w * 32 + lane()]);
  return number;
}

// Combines the splits of 32 queries: a lane has a query, a warp every eighth split.
//
// kBinary    logits are to base 2
// grid       ceil(query_heads window / 32)
// block      256
// shared     1,024 bytes
// registers  58 (sm_90a), 57-61 (sm_80)
// bytes      read: 8 for each query and split; written: 4 for each query
// FLOP       2 and an exponential for each query and split
template <bool kBinary>
__global__ void __launch_bounds__(kJoinWarps * 32)
    window_log_sum_exp_join_kernel(SplitPartials partials, int64_t splits, float* log_sum_exp) {
  SharedMemory memory;
  const JoinShared shared(memory);
  const int64_t query = blockIdx.x * int64_t{32} + lane();
  const bool exists = query < partials.queries;
  float largest = kNothing;
#pragma unroll 8
  for (int64_t s = warp(); s < splits; s += kJoinWarps) {
    if (exists) largest = fmaxf(largest, partials.largest[s * partials.queries + query]);
  }
  largest = join_warps(largest, shared.by_warp, Larger());
  float sum = 0;
#pragma unroll 8
  for (int64_t s = warp(); s < splits; s += kJoinWarps) {
    const float most = exists ? partials.largest[s * partials.queries + query] : kNothing;
    if (most == kNothing) continue;
    const float factor = kBinary ? exp2f(most - largest) : expf(most - largest);
    sum += partials.sums[s * partials.queries + query] * factor;
  }
  sum = join_warps(sum, shared.by_warp, Sum());
  if (!exists || warp() != 0) return;
  constexpr auto kLn2 = static_cast<float>(std::numbers::ln2);
  log_sum_exp[query] = kBinary ? fmaf(largest, kLn2, logf(sum)) : largest + logf(sum);
}

template <Storage T>
int64_t split_depth(int64_t tokens) {
  return Storage16<T> ? mma_split_depth(tokens) : portable_split_depth(tokens);
}
template <Storage T>
int64_t split_rescalings(int64_t tokens) {
  return Storage16<T> ? mma_split_rescalings(tokens) : portable_split_rescalings(tokens);
}

// The maximum over the columns j - reach .. j + reach: a thread has one column.
//
// grid       (ceil(cols / 128), rows)
// block      128; no shared memory
// registers  30 (sm_90a and sm_80)
// bytes      read: 4 rows cols, the neighbours from the L1 cache; written: 4 rows cols
// no FLOP    2 reach comparisons for each column
__global__ void __launch_bounds__(kPoolThreads)
    max_pool_kernel(const float* scores, int64_t cols, int64_t row_stride, int64_t reach, float* pooled) {
  const int64_t j = blockIdx.x * static_cast<int64_t>(kPoolThreads) + threadIdx.x;
  if (j >= cols) return;
  const float* row = scores + blockIdx.y * row_stride;
  const int64_t last = min(cols - 1, j + reach);
  float most = row[max(int64_t{0}, j - reach)];
  for (int64_t i = max(int64_t{0}, j - reach) + 1; i <= last; ++i) {
    // NaN is passed on, for the selection to report.
    if (row[i] > most || row[i] != row[i]) most = row[i];
  }
  pooled[blockIdx.y * cols + j] = most;
}

}  // namespace

int64_t window_log_sum_exp_workspace(int64_t query_heads, int64_t window, int64_t tokens) {
  return query_heads * window * Splits(tokens).count * 2 * static_cast<int64_t>(sizeof(float));
}

template <Storage T>
void window_log_sum_exp(const WindowView<T>& view, float* log_sum_exp, Workspace workspace, Stream stream) {
  require_window(view);
  const Window<T> window(view);
  const int64_t queries = view.queries.slices * window.size();
  require_workspace(workspace,
                    window_log_sum_exp_workspace(view.queries.slices, window.size(), window.tokens()));
  const Splits splits(window.tokens());
  auto* const memory = static_cast<float*>(workspace.data);
  const SplitPartials partials{memory, memory + queries * splits.count, queries};
  if constexpr (Storage16<T>) {
    if (wgmma_can(window)) {
      launch_splits_wgmma(window, partials, stream);
    } else {
      launch_splits_mma(window, splits, partials, stream);
    }
  } else {
    launch_splits_portable(window, splits, partials, stream);
  }
  launch<window_log_sum_exp_join_kernel<Storage16<T>>>(
      {extent(ceil_division(queries, 32)), extent(kJoinWarps * 32), shared_bytes<JoinShared>(), stream},
      partials, splits.count, log_sum_exp);
}

template <Storage T>
void window_attention(const WindowView<T>& view, const float* log_sum_exp, WindowReduction reduction,
                      float* weights, Stream stream) {
  require_window(view);
  const Window<T> window(view);
  if constexpr (Storage16<T>) {
    if (wgmma_can(window)) return launch_attention_wgmma(window, log_sum_exp, reduction, weights, stream);
    launch_attention_mma(window, log_sum_exp, reduction, weights, stream);
  } else {
    launch_attention_portable(window, log_sum_exp, reduction, weights, stream);
  }
}

template void window_log_sum_exp(const WindowView<float>&, float*, Workspace, Stream);
template void window_log_sum_exp(const WindowView<Float16>&, float*, Workspace, Stream);
template void window_log_sum_exp(const WindowView<Bfloat16>&, float*, Workspace, Stream);

template void window_attention(const WindowView<float>&, const float*, WindowReduction, float*, Stream);
template void window_attention(const WindowView<Float16>&, const float*, WindowReduction, float*, Stream);
template void window_attention(const WindowView<Bfloat16>&, const float*, WindowReduction, float*, Stream);

template <Storage T>
KernelArithmetic window_arithmetic(int64_t tokens, int64_t head_dim) {
  const int64_t of_split = std::min(tokens, Splits(tokens).tokens), splits = Splits(tokens).count;
  KernelArithmetic arithmetic{.precision = Precision::fp32, .accumulation_depth = 0, .rescalings = 0};
  if (tokens > 0) {
    // A warp adds every eighth split, then the warps are added. No sum is rescaled more often
    // than it has tokens, but one.
    arithmetic.accumulation_depth =
        split_depth<T>(of_split) + ceil_division(splits, kJoinWarps) - 1 + kJoinWarps - 1;
    arithmetic.rescalings = std::min(tokens - 1, split_rescalings<T>(of_split) + (splits > 1 ? 1 : 0));
  }
  if constexpr (Storage16<T>) {
    // Of both kernels: one chains more products, the other adds the sums of chains.
    arithmetic.product_depth = row_product_depth(head_dim);
    arithmetic.tensor_sums = kChainedTensorSums;
    arithmetic.tensor_chain = std::max(row_product_chain(head_dim), wgmma_tensor_chain(head_dim));
  } else {
    arithmetic.product_depth = window_tiles::product_depth(head_dim);
  }
  return arithmetic;
}
template KernelArithmetic window_arithmetic<float>(int64_t, int64_t);
template KernelArithmetic window_arithmetic<Float16>(int64_t, int64_t);
template KernelArithmetic window_arithmetic<Bfloat16>(int64_t, int64_t);

void max_pool(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, int64_t width,
              float* pooled, Stream stream) {
  if (width < 1 || width % 2 == 0) {
    throw ShapeMismatch("a pool of width " + std::to_string(width) + " has no middle; expected an odd width");
  }
  if (row_stride < cols) {
    throw ShapeMismatch("row_stride of scores is " + std::to_string(row_stride) + " but rows have " +
                        std::to_string(cols) + " columns");
  }
  if (rows <= 0 || cols <= 0) return;
  launch<max_pool_kernel>({extent(ceil_division(cols, kPoolThreads), rows), dim3(kPoolThreads), 0, stream},
                          scores, cols, row_stride, (width - 1) / 2, pooled);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
