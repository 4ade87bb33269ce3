#include "compaction.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 256;
constexpr int kVectorsPerThread = 4;  // loads in flight before the first store

struct CompactArguments {
  const uint4* rows;
  const int64_t* kept;
  const int64_t* count;
  uint4* compacted;
  int64_t kept_stride;
  int64_t vectors;                                       // of 16 bytes in a row, padding included
  int64_t row_stride, slice_stride;                      // in vectors
  int64_t compacted_row_stride, compacted_slice_stride;  // in vectors
};

// Copies the kept rows of one KV head, counted in vectors of 16 bytes; a thread has four vectors, 256 apart.
//
// grid       (ceil(capacity vectors / 1024), kv_heads)
// block      256; no shared memory
// registers  42 (sm_90a), 40 (sm_80)
// bytes      read: 16 vectors + 8 for each kept row, its index again from the L1 cache; written: 16 vectors for each
// no FLOP
__global__ void __launch_bounds__(kThreads) compact_kernel(CompactArguments p) {
  const int64_t g = blockIdx.y;
  const int64_t size = p.count[g] * p.vectors;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kVectorsPerThread + threadIdx.x;
  uint4 moved[kVectorsPerThread];
#pragma unroll
  for (int n = 0; n < kVectorsPerThread; ++n) {
    const int64_t v = first + n * kThreads;
    if (v >= size) break;
    const int64_t position = p.kept[g * p.kept_stride + v / p.vectors];
    moved[n] = p.rows[g * p.slice_stride + position * p.row_stride + v % p.vectors];
  }
#pragma unroll
  for (int n = 0; n < kVectorsPerThread; ++n) {
    const int64_t v = first + n * kThreads;
    if (v >= size) break;
    p.compacted[g * p.compacted_slice_stride + v / p.vectors * p.compacted_row_stride + v % p.vectors] =
        moved[n];
  }
}

struct MoveNumbersArguments {
  NumberRows<const float> from;
  const int64_t* kept;
  const int64_t* count;
  NumberRows<float> to;
  int64_t kept_stride;
  int64_t rows_per_head;
};

// Copies one number of a row for each thread: from where it is kept, or scattered to where it is kept.
//
// grid       (ceil(kept_stride / 256), rows)
// block      256; no shared memory
// registers  20 (sm_90a), 18 (sm_80)
// bytes      read: 12 for each row and kept entry; written: 4 for each; no FLOP
template <bool kScatters>
__global__ void __launch_bounds__(kThreads) move_numbers_kernel(MoveNumbersArguments p) {
  const int64_t row = blockIdx.y;
  const int64_t g = row / p.rows_per_head;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.count[g]) return;
  const int64_t kept = p.kept[g * p.kept_stride + i];
  p.to.data[row * p.to.row_stride + (kScatters ? kept : i)] =
      p.from.data[row * p.from.row_stride + (kScatters ? i : kept)];
}

// grid       (ceil(stride / 256), kv_heads)
// block      256; no shared memory
// registers  16 (sm_90a and sm_80)
// bytes      read: 16 for each chosen slot; written: 8; no FLOP
__global__ void __launch_bounds__(kThreads)
    compact_positions_kernel(CacheSlots slots, PositionLists chosen, int64_t* positions) {
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= chosen.count[g]) return;
  const int64_t place = g * chosen.stride + i;
  positions[place] = slots.positions[g * slots.capacity + chosen.positions[place]];
}

template <bool kScatters>
void move_numbers(const NumberRows<const float>& from, int64_t kv_heads, const int64_t* kept,
                  int64_t kept_stride, const int64_t* count, const NumberRows<float>& to, Stream stream) {
  require_equal("rows of numbers", from.rows, "rows that they are copied to", to.rows);
  require_groups(from.rows, kv_heads);
  if (kept_stride == 0) return;
  const MoveNumbersArguments arguments{from, kept, count, to, kept_stride, from.rows / kv_heads};
  launch<move_numbers_kernel<kScatters>>(
      {extent(ceil_division(kept_stride, kThreads), from.rows), extent(kThreads), 0, stream}, arguments);
}

}  // namespace

template <Storage T>
void compact(DeviceTensor<const T> rows, const int64_t* kept, int64_t kept_stride, const int64_t* count,
             DeviceTensor<T> compacted, Stream stream) {
  require_layout("rows", rows);
  require_layout("compacted", compacted);
  require_equal("slices of rows", rows.slices, "slices of compacted", compacted.slices);
  require_equal("columns of rows", rows.cols, "columns of compacted", compacted.cols);
  const int64_t vectors = padded<T>(rows.cols) / kVector<T>;
  constexpr int64_t kBlock = kThreads * kVectorsPerThread;
  const int64_t blocks = ceil_division(compacted.rows * vectors, kBlock);
  if (blocks == 0 || rows.slices == 0) return;
  const CompactArguments arguments{reinterpret_cast<const uint4*>(rows.data),
                                   kept,
                                   count,
                                   reinterpret_cast<uint4*>(compacted.data),
                                   kept_stride,
                                   vectors,
                                   rows.row_stride / kVector<T>,
                                   rows.slice_stride / kVector<T>,
                                   compacted.row_stride / kVector<T>,
                                   compacted.slice_stride / kVector<T>};
  launch<compact_kernel>({extent(blocks, rows.slices), extent(kThreads), 0, stream}, arguments);
}

template void compact(DeviceTensor<const float>, const int64_t*, int64_t, const int64_t*, DeviceTensor<float>,
                      Stream);
template void compact(DeviceTensor<const Float16>, const int64_t*, int64_t, const int64_t*,
                      DeviceTensor<Float16>, Stream);
template void compact(DeviceTensor<const Bfloat16>, const int64_t*, int64_t, const int64_t*,
                      DeviceTensor<Bfloat16>, Stream);

void compact_numbers(NumberRows<const float> numbers, int64_t kv_heads, const int64_t* kept,
                     int64_t kept_stride, const int64_t* count, NumberRows<float> compacted, Stream stream) {
  move_numbers<false>(numbers, kv_heads, kept, kept_stride, count, compacted, stream);
}

void compact_positions(const CacheSlots& slots, const PositionLists& chosen, int64_t* positions,
                       Stream stream) {
  require_range("stride of the chosen slots", chosen.stride, 0, INT32_MAX);
  if (chosen.stride == 0 || slots.kv_heads == 0) return;
  launch<compact_positions_kernel>(
      {extent(ceil_division(chosen.stride, kThreads), slots.kv_heads), extent(kThreads), 0, stream}, slots,
      chosen, positions);
}

void scatter_numbers(NumberRows<const float> numbers, int64_t kv_heads, const int64_t* kept,
                     int64_t kept_stride, const int64_t* count, NumberRows<float> to, Stream stream) {
  move_numbers<true>(numbers, kv_heads, kept, kept_stride, count, to, stream);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
