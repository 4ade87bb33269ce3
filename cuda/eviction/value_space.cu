// Lengths in the space of a query head: the choice of kernels, their arithmetic, and lengths in the head's own space.
#include "value_space.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "gram_rows.hpp"
#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using gram_rows::kMostHeadDim;

constexpr int kSquareThreads = 256;

template <Storage T, int kDims>
inline constexpr int kSquareRows = kSquareThreads / 32 * RowLanes<T, kDims>::kWarpRows;  // of a block

// The sum of the squares of this lane's numbers.
template <Storage T, int kDims>
__device__ float squares_of(const LoadedRow<T, kDims>& value) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < RowLanes<T, kDims>::kNumbers; ++i) sum = fmaf(value.number(i), value.number(i), sum);
  return sum;
}

// The squared lengths of a KV head's values in the head's space, which are the same for all query heads of its group: 8, 16 or 32
// lanes have a value (row_lanes.hpp), and four loads are in flight; a warp's lengths are written at once for each query head.
//
//     lanes  0 .. 15       16 .. 31        head_dim 128 of 16-bit numbers
//            token 0       token 1
//            token 2       token 3
//            token 4       token 5
//            token 6       token 7
//
// grid       (ceil(tokens / block's tokens), kv_heads): 64 tokens for 16-bit types and head_dim 128
// block      256; no shared memory
// registers  32-40 (sm_90a and sm_80)
// bytes      read: head_dim sizeof(T) for each token and KV head; written: 4 query_heads tokens
// FLOP       2 head_dim for each token and KV head
template <int kDims, Storage T>
__global__ void __launch_bounds__(kSquareThreads)
    head_squared_norms_kernel(DeviceTensor<const T> values, int64_t group_size, float* norms) {
  using Lanes = RowLanes<T, kDims>;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kSquareRows<T, kDims>;
  const auto count = static_cast<int>(min(int64_t{kSquareRows<T, kDims>}, values.rows - block));
  const T* const lanes =
      values.data + blockIdx.y * values.slice_stride + block * values.row_stride + Lanes::column(0);
  const int first = warp() * Lanes::kWarpRows + Lanes::row();
  LoadedRow<T, kDims> loaded[kRowsInFlight];
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    const int row = first + n * Lanes::kRowsAtOnce;
    loaded[n].load(lanes, row < count ? row : -1, static_cast<uint32_t>(values.row_stride),
                   static_cast<int>(values.cols));
  }
  float own = 0;  // of the row that this lane writes
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    const float sum = warp_sum<Lanes::kLanes>(squares_of(loaded[n]));
    if (Lanes::lane_in_row() == n) own = sum;
  }
  const int row = first + Lanes::lane_in_row() * Lanes::kRowsAtOnce;
  if (Lanes::lane_in_row() >= kRowsInFlight || row >= count) return;
  float* const to = norms + blockIdx.y * group_size * values.rows + block + row;
  for (int64_t h = 0; h < group_size; ++h) to[h * values.rows] = own;
}

template <int kDims, Storage T>
void launch_head_squared_norms(const DeviceTensor<const T>& values, int64_t group_size, float* norms,
                               Stream stream) {
  launch<head_squared_norms_kernel<kDims, T>>(
      {extent(ceil_division(values.rows, kSquareRows<T, kDims>), values.slices), extent(kSquareThreads), 0,
       stream},
      values, group_size, norms);
}

}  // namespace

template <Storage T>
void gram_matrices(DeviceTensor<const T> output_projection, float* gram, Stream stream) {
  require_layout("output_projection", output_projection);
  require_range("head_dim", output_projection.rows, 1, kMostHeadDim);
  if (output_projection.slices == 0) return;
  if constexpr (Storage16<T>) {
    value_space_kernels::launch_gram_mma(output_projection, gram, stream);
  } else {
    value_space_kernels::launch_gram_portable(output_projection, gram, stream);
  }
}

template <Storage T>
void squared_norms(DeviceTensor<const T> values, const float* gram, int64_t query_heads, float* norms,
                   Stream stream) {
  require_layout("values", values);
  require_groups(query_heads, values.slices);
  require_range("head_dim", values.cols, 1, kMostHeadDim);
  if (values.rows == 0) return;
  if (!gram) {
    return by_dims(values.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
      launch_head_squared_norms<kDims>(values, query_heads / values.slices, norms, stream);
    });
  }
  const value_space_kernels::Arguments<T> arguments{values, gram, query_heads, norms};
  if constexpr (Storage16<T>) {
    value_space_kernels::launch_squares_mma(arguments, stream);
  } else {
    value_space_kernels::launch_squares_portable(arguments, stream);
  }
}

template <Storage T>
int64_t gram_depth(int64_t model_dim) {
  return Storage16<T> ? value_space_kernels::mma_gram_depth(model_dim)
                      : value_space_kernels::portable_gram_depth(model_dim);
}

template <Storage T>
KernelArithmetic value_space_arithmetic(int64_t head_dim, int64_t model_dim) {
  using namespace value_space_kernels;
  KernelArithmetic arithmetic;
  if constexpr (Storage16<T>) {
    arithmetic.length_depth = gram_depth<T>(model_dim) + mma_square_depth(head_dim);
    arithmetic.tensor_gram = mma_gram_sums(model_dim);
    arithmetic.tensor_lengths = mma_square_sums(head_dim);
  } else {
    arithmetic.length_depth = gram_depth<T>(model_dim) + portable_square_depth(head_dim);
  }
  return arithmetic;
}

template void gram_matrices(DeviceTensor<const float>, float*, Stream);
template void gram_matrices(DeviceTensor<const Float16>, float*, Stream);
template void gram_matrices(DeviceTensor<const Bfloat16>, float*, Stream);
template void squared_norms(DeviceTensor<const float>, const float*, int64_t, float*, Stream);
template void squared_norms(DeviceTensor<const Float16>, const float*, int64_t, float*, Stream);
template void squared_norms(DeviceTensor<const Bfloat16>, const float*, int64_t, float*, Stream);
template int64_t gram_depth<float>(int64_t);
template int64_t gram_depth<Float16>(int64_t);
template int64_t gram_depth<Bfloat16>(int64_t);
template KernelArithmetic value_space_arithmetic<float>(int64_t, int64_t);
template KernelArithmetic value_space_arithmetic<Float16>(int64_t, int64_t);
template KernelArithmetic value_space_arithmetic<Bfloat16>(int64_t, int64_t);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
