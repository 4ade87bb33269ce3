// Kernels that read each value once: squared lengths in the head's own space, and roots of
// squared lengths after W^O.
#include <algorithm>
#include <cfloat>

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
// Tiles of kRows tokens for which a block finds the traces of its Gram matrices once.
constexpr int kTiles = 8;
// Products of a partial sum of a projected value: parts keep the accumulation depth small.
constexpr int kPart = 16;

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

struct TraceShared {
  float* traces;  // [group_size]: tr G

  __host__ __device__ TraceShared(SharedMemory& memory, int64_t group_size)
      : traces(memory.array<float>(group_size)) {}
};

// tr G of a query head, in all lanes. The whole warp calls it.
__device__ float trace_of(const float* gram, int head_dim) {
  float sum = 0;
  for (int k = lane(); k < head_dim; k += 32) sum += gram[k * (head_dim + 1)];
  return warp_sum(sum);
}

// Whether the root of v G v^T is the norm: not if it is a small share of |v|^2 tr G, or if anything that
// counts may have been lost below the normal range or is not finite.
//
// length  |v|^2
template <Storage T>
__device__ bool says_the_norm(const RootArguments<T>& p, float square, float length, float trace) {
  return square >= p.share * (length * trace) && square <= FLT_MAX && length >= kLeastRootLength &&
         trace >= kLeastRootTrace;
}

// || v W ||_2 by fp32 multiply-adds, in all lanes: lane l has the columns l, l + 32, ...
// The whole warp calls it.
template <Storage T>
__device__ float norm_of_projected(const T* value, const T* projection, int64_t row_stride, int head_dim,
                                   int64_t model_dim) {
  bool any = false;
  for (int k = lane(); k < head_dim; k += 32) any = any || to_float(value[k]) != 0;
  if (__ballot_sync(kAllLanes, any) == 0) return 0;
  float squares = 0;
  for (int64_t column = lane(); column < model_dim; column += 32) {
    float projected = 0;
    for (int first = 0; first < head_dim; first += kPart) {
      float part = 0;
      for (int k = first; k < min(first + kPart, head_dim); ++k) {
        part = fmaf(to_float(value[k]), to_float(projection[k * row_stride + column]), part);
      }
      projected += part;
    }
    squares = fmaf(projected, projected, squares);
  }
  return sqrtf(warp_sum(squares));
}

// Turns the squares of a warp's lanes into norms, of one query head. Where v G v^T is a small difference of
// large numbers and says little, the warp projects its lanes' values, one after the other.
template <Storage T, int kDims>
__device__ void write_norms(const RootArguments<T>& p, int64_t head, const OwnValue<T, kDims>& own,
                            float trace) {
  float* const norms = p.norms + head * p.values.rows;
  const float square = own.exists ? norms[own.token] : 0;
  const bool known = says_the_norm(p, square, own.length, trace);
  if (own.exists && known) norms[own.token] = sqrtf(square);
  for (unsigned rest = __ballot_sync(kAllLanes, own.exists && !known); rest != 0; rest &= rest - 1) {
    const int of = __ffs(static_cast<int>(rest)) - 1;
    const int64_t token = __shfl_sync(kAllLanes, own.token, of);
    const float norm = norm_of_projected(
        p.values.data + row_of_block() * p.values.slice_stride + token * p.values.row_stride,
        p.output_projection.data + head * p.output_projection.slice_stride, p.output_projection.row_stride,
        static_cast<int>(p.values.cols), p.output_projection.cols);
    if (lane() == of) norms[own.token] = norm;
  }
}

// Turns squared lengths of the query heads of a group into norms.
//
// grid       (ceil(tokens / block's tokens), kv_heads): 512 tokens for 16-bit types and head_dim 128
// block      256
// shared     4 group_size bytes
// registers  32-48 (sm_90a), 40-48 (sm_80)
// bytes      read: head_dim sizeof(T) for each token and KV head, 4 query_heads tokens; the diagonals
//            of G for each block, and W^O for each value that is projected, from the L2 cache;
//            written: 4 query_heads tokens
// FLOP       2 head_dim for each token and KV head; 2 head_dim model_dim for each value that is projected
template <int kDims, Storage T>
__global__ void __launch_bounds__(kThreads) norms_of_squares_kernel(RootArguments<T> p) {
  begin_dependent_launch();
  SharedMemory memory;
  const TraceShared shared(memory, p.group_size());
  const auto head_dim = static_cast<int>(p.values.cols), heads = static_cast<int>(p.group_size());
  const int64_t kv_head = row_of_block(), first_head = kv_head * heads;
  if (kv_head >= p.values.slices) return;
  for (int h = warp(); h < heads; h += kThreads / 32) {
    const float trace = trace_of(p.gram + (first_head + h) * head_dim * head_dim, head_dim);
    if (lane() == 0) shared.traces[h] = trace;
  }
  __syncthreads();
  const int64_t tiles = ceil_division(p.values.rows, kRows<T, kDims>), first = int64_t{blockIdx.x} * kTiles;
  for (int64_t tile = first; tile < min(tiles, first + kTiles); ++tile) {
    const OwnValue<T, kDims> own(p.values, tile);
    for (int h = 0; h < heads; ++h) write_norms(p, first_head + h, own, shared.traces[h]);
  }
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

template <Storage T>
void launch_roots(const RootArguments<T>& arguments, Stream stream) {
  by_dims(arguments.values.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch_dependent<norms_of_squares_kernel<kDims, T>>(
        {extent_of_rows(ceil_division(arguments.values.rows, kTiles * kRows<T, kDims>),
                        arguments.values.slices),
         extent(kThreads), shared_bytes<TraceShared>(arguments.group_size()), stream},
        arguments);
  });
}
template void launch_roots(const RootArguments<float>&, Stream);
template void launch_roots(const RootArguments<Float16>&, Stream);
template void launch_roots(const RootArguments<Bfloat16>&, Stream);

int64_t root_product_depth(int64_t head_dim) {
  return std::min<int64_t>(head_dim, kPart) + ceil_division(head_dim, kPart);
}

// A lane's columns in their order, then 32 lanes by a tree.
int64_t root_accumulation_depth(int64_t model_dim) { return ceil_division(model_dim, 32) + 5; }

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
