// Squared lengths of values in the head's own space: any type, any device.
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>

#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {
namespace {

constexpr int kThreads = 256;

// Tokens whose values a block loads at once.
template <Storage T, int kDims>
inline constexpr int kRows = kThreads / 32 * RowLanes<T, kDims>::kWarpRows;

// A value that this lane has: 8, 16 or 32 lanes load a value together (row_lanes.hpp), four loads are in
// flight, and each sum of squares is kept by one of these lanes. The whole block makes it.
//
//     lanes  0 .. 15       16 .. 31        head_dim 128 of 16-bit numbers
//            token 0       token 1
//            token 2       token 3
//            token 4       token 5
//            token 6       token 7
template <Storage T, int kDims>
struct OwnValue {
  int64_t token = 0;
  float length = 0;     // |v|^2
  bool exists = false;  // some lanes have none

  // number  of the kRows tokens among those of the KV head
  __device__ OwnValue(const DeviceTensor<const T>& values, int64_t number) {
    using Lanes = RowLanes<T, kDims>;
    const int64_t block = number * kRows<T, kDims>;
    const auto count = static_cast<int>(min(int64_t{kRows<T, kDims>}, values.rows - block));
    const T* const lanes =
        values.data + row_of_block() * values.slice_stride + block * values.row_stride + Lanes::column(0);
    const int first = warp() * Lanes::kWarpRows + Lanes::row();
    LoadedRow<T, kDims> loaded[kRowsInFlight];
#pragma unroll
    for (int n = 0; n < kRowsInFlight; ++n) {
      const int row = first + n * Lanes::kRowsAtOnce;
      loaded[n].load(lanes, row < count ? row : -1, static_cast<uint32_t>(values.row_stride),
                     static_cast<int>(values.cols));
    }
#pragma unroll
    for (int n = 0; n < kRowsInFlight; ++n) {
      const float sum = warp_sum<Lanes::kLanes>(squares_of(loaded[n]));
      if (Lanes::lane_in_row() == n) length = sum;
    }
    const int row = first + Lanes::lane_in_row() * Lanes::kRowsAtOnce;
    exists = Lanes::lane_in_row() < kRowsInFlight && row < count;
    token = block + row;
  }

 private:
  // The sum of the squares of this lane's numbers.
  __device__ static float squares_of(const LoadedRow<T, kDims>& value) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < RowLanes<T, kDims>::kNumbers; ++i) sum = fmaf(value.number(i), value.number(i), sum);
    return sum;
  }
};

// The squared lengths of a KV head's values in the head's space, which are the same for all
// query heads of its group.
//
// grid       (ceil(tokens / block's tokens), kv_heads): 64 tokens for 16-bit types and head_dim 128
// block      256; no shared memory
// registers  32 (sm_90a), 28-32 (sm_80)
// bytes      read: head_dim sizeof(T) for each token and KV head; written: 4 query_heads tokens
// FLOP       2 head_dim for each token and KV head
template <int kDims, Storage T>
__global__ void __launch_bounds__(kThreads)
    head_squared_norms_kernel(DeviceTensor<const T> values, int64_t group_size, float* norms) {
  begin_dependent_launch();
  if (row_of_block() >= values.slices) return;
  const OwnValue<T, kDims> own(values, blockIdx.x);
  if (!own.exists) return;
  float* const to = norms + row_of_block() * group_size * values.rows + own.token;
  for (int64_t h = 0; h < group_size; ++h) to[h * values.rows] = own.length;
}

}  // namespace

template <Storage T>
void launch_head_squares(const DeviceTensor<const T>& values, int64_t group_size, float* norms,
                         Stream stream) {
  by_dims(values.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch_dependent<head_squared_norms_kernel<kDims, T>>(
        {extent_of_rows(ceil_division(values.rows, kRows<T, kDims>), values.slices), extent(kThreads), 0,
         stream},
        values, group_size, norms);
  });
}
template void launch_head_squares(const DeviceTensor<const float>&, int64_t, float*, Stream);
template void launch_head_squares(const DeviceTensor<const Float16>&, int64_t, float*, Stream);
template void launch_head_squares(const DeviceTensor<const Bfloat16>&, int64_t, float*, Stream);

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
