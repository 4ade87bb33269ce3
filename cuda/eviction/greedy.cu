// The greedy selection's set-up: logits, outputs, and the products that a removal updates.
#include "greedy.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/window/window_tiles.hpp>

#include "greedy_removal.hpp"
#include "greedy_state.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace greedy_state;

constexpr int kEach = 128;

// The values of one KV head minus their mean, which loses fewer bits where they have a large common part:
// a thread has one column.
//
// grid       (ceil(head_dim / 128), kv_heads)
// block      128; no shared memory
// registers  28 (sm_90a), 29 (sm_80)
// bytes      read: the values twice; written: 8 kv_heads tokens head_dim
// FLOP       3 kv_heads tokens head_dim, fp64
template <Storage T>
__global__ void __launch_bounds__(kEach) centre_kernel(State all, DeviceTensor<const T> values) {
  const State s = all.of(blockIdx.y);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x;
  if (column >= s.sizes.head_dim) return;
  const T* numbers = values.data + blockIdx.y * values.slice_stride + column;
  double sum = 0;
  for (int64_t j = 0; j < s.sizes.tokens; ++j)
    sum += static_cast<double>(to_float(numbers[j * values.row_stride]));
  const double mean = sum / static_cast<double>(s.sizes.tokens);
  for (int64_t j = 0; j < s.sizes.tokens; ++j) {
    s.values[j * s.sizes.head_dim + column] =
        static_cast<double>(to_float(numbers[j * values.row_stride])) - mean;
  }
}

// The logits of one window query of a KV head's group: a thread has one token.
//
// grid       (ceil(tokens / 128), rows, kv_heads)
// block      128; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read: a query and the keys for each row; written: 8 kv_heads rows tokens
// FLOP       2 kv_heads rows tokens head_dim, fp64
template <Storage T>
__global__ void __launch_bounds__(kEach) logits_kernel(State all, WindowView<T> window) {
  const State s = all.of(blockIdx.z);
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, row = blockIdx.y;
  if (token >= s.sizes.tokens) return;
  const int64_t head = blockIdx.z * (s.sizes.rows / s.sizes.window) + row / s.sizes.window;
  const int64_t place = row % s.sizes.window;
  const T* query =
      window.queries.data + head * window.queries.slice_stride + place * window.queries.row_stride;
  const T* key = window.keys.data + blockIdx.z * window.keys.slice_stride + token * window.keys.row_stride;
  double sum = 0;
  for (int64_t c = 0; c < s.sizes.head_dim; ++c) {
    sum += static_cast<double>(to_float(query[c])) * static_cast<double>(to_float(key[c]));
  }
  const bool visible = token <= s.sizes.tokens - s.sizes.window + place;
  s.logits[row * s.sizes.tokens + token] = visible ? window.scale * sum : kNone;
}

// One query's output over all entries, and its sums.
//
// grid       (rows, kv_heads)
// block      512
// shared     4,352 bytes
// registers  62 (sm_90a), 40 (sm_80)
// bytes      read: 8 tokens head_dim and 32 tokens for each row; written: 32 head_dim for each row
// FLOP       3 kv_heads rows tokens head_dim, and head_dim + 2 exponentials for each row and token, fp64:
//            every thread forms the weights of its column's tokens itself
__global__ void __launch_bounds__(kThreads) outputs_kernel(State all) {
  SharedMemory memory;
  const Shared shared(memory);
  const State s = all.of(blockIdx.y);
  const int64_t i = blockIdx.x, dim = s.sizes.head_dim;
  for (int64_t c = threadIdx.x; c < dim; c += kThreads) s.outputs[i * dim + c] = 0;
  __syncthreads();
  // Against an output of 0 the change is the sum of weighted values: the output.
  gather(
      s, i, [](int64_t) { return true; }, s.all, shared);
  __syncthreads();
  for (int64_t c = threadIdx.x; c < dim; c += kThreads) {
    s.outputs[i * dim + c] = s.all.change[i * dim + c];
    s.all.change[i * dim + c] = 0;
  }
  if (threadIdx.x > 0) return;
  s.all.mass[i] = 1;
  s.along[i] = s.length[i] = 0;
  s.dominant[i] = -1;
}

// A query's weights of candidates and the products with them: a thread has one candidate.
//
// grid       (ceil(candidates / 128), rows, kv_heads)
// block      128; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read: 8 candidates head_dim for each row, and its output; written: 32 for each row and candidate
// FLOP       5 kv_heads rows candidates head_dim, fp64
__global__ void __launch_bounds__(kEach) products_kernel(State all) {
  const State s = all.of(blockIdx.z);
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, i = blockIdx.y;
  if (j >= s.sizes.candidates) return;
  const double* value = s.values + j * s.sizes.head_dim;
  const double* output = s.outputs + i * s.sizes.head_dim;
  double along = 0, distance = 0;
  for (int64_t c = 0; c < s.sizes.head_dim; ++c) {
    along += output[c] * value[c];
    distance += (output[c] - value[c]) * (output[c] - value[c]);
  }
  const int64_t place = i * s.sizes.candidates + j;
  s.weights[place] = exp(s.logits[i * s.sizes.tokens + j] - s.all.log_sum_exp[i]);
  s.distances[place] = distance;
  s.output_products[place] = along;
  s.change_products[place] = 0;
  if (i == 0) s.left[j] = 1;
}

template <Storage T>
Sizes sizes_of(const WindowView<T>& window, int64_t candidates) {
  const int64_t group_size = window.queries.slices / window.keys.slices;
  return {window.keys.slices,  group_size * window.queries.rows,
          window.queries.rows, window.keys.rows,
          candidates,          window.keys.cols};
}

}  // namespace

int64_t select_greedy_workspace(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t window,
                                int64_t tokens) {
  const Sizes sizes{kv_heads, query_heads / kv_heads * window, window, tokens, tokens - window, head_dim};
  return State(sizes, nullptr).bytes();
}

template <Storage T>
void select_greedy(const WindowView<T>& window, DeviceTensor<const T> values, int64_t candidates,
                   const int64_t* k, const SelectionResult& selection, Workspace workspace, Stream stream) {
  require_window(window, values);
  require_range("candidates", candidates, 0, window.keys.rows - window.queries.rows);
  const Sizes sizes = sizes_of(window, candidates);
  require_workspace(workspace, State(sizes, nullptr).bytes());
  if (candidates == 0) return;
  const State state(sizes, workspace.data);
  launch<centre_kernel<T>>(
      {extent(ceil_division(sizes.head_dim, kEach), sizes.kv_heads), extent(kEach), 0, stream}, state,
      values);
  launch<logits_kernel<T>>(
      {extent(ceil_division(sizes.tokens, kEach), sizes.rows, sizes.kv_heads), extent(kEach), 0, stream},
      state, window);
  launch<outputs_kernel>(
      {extent(sizes.rows, sizes.kv_heads), extent(kThreads), shared_bytes<Shared>(), stream}, state);
  launch<products_kernel>(
      {extent(ceil_division(candidates, kEach), sizes.rows, sizes.kv_heads), extent(kEach), 0, stream},
      state);
  greedy_removal::launch_removals(state, k, selection, stream);
}

template void select_greedy(const WindowView<float>&, DeviceTensor<const float>, int64_t, const int64_t*,
                            const SelectionResult&, Workspace, Stream);
template void select_greedy(const WindowView<Float16>&, DeviceTensor<const Float16>, int64_t, const int64_t*,
                            const SelectionResult&, Workspace, Stream);
template void select_greedy(const WindowView<Bfloat16>&, DeviceTensor<const Bfloat16>, int64_t,
                            const int64_t*, const SelectionResult&, Workspace, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
