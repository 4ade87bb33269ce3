#include "compaction.hpp"

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/paged_rows.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsInFlight = 4;  // of a lane: loads before the first store
constexpr int kMostTensors = 2;   // keys and values
constexpr int64_t kMostRowBytes = INT32_MAX;

// Rows of a tensor of all KV heads.
struct MovedRows {
  const char* rows;
  char* compacted;
  int64_t slice_bytes, compacted_slice_bytes;  // from one KV head to the next
  uint32_t row_bytes, compacted_row_bytes;     // from one row to the next
};

struct CompactArguments {
  MovedRows keys, values;
  const int64_t* kept;
  const int64_t* count;
  int64_t kept_stride;
  PageTable pages;  // of `compacted`
  unsigned kv_heads, tensors;
  int vectors;  // of 16 bytes in a row, padding included
};

// The parts of up to kLanes vectors in which a row is copied.
template <int kLanes>
__host__ __device__ int parts_of(int vectors) {
  return (vectors + kLanes - 1) / kLanes;
}

// Copies the kept rows of one KV head. kLanes lanes copy a row, or a part of a longer one, a vector of 16
// bytes each, and a warp 32 / kLanes rows at once; the warp reads the positions of all its rows by one load,
// which does not wait for their number, and hands them out. All loads of rows stand before the first store.
//
//       a warp, kLanes = 16:      rows 0, 2, 4, 6 by lanes 0..15      rows 1, 3, 5, 7 by lanes 16..31
//
// grid       ceil(capacity / rows of a block) along x, rows tensors parts kv_heads: rows of a block = 8 warps
//            x 4 x 32 / kLanes
// block      256; no shared memory
// registers  28-32 (sm_90a and sm_80)
// bytes      read: 8 + 16 vectors for each kept row; written: 16 vectors for each; no FLOP
template <int kLanes>
__global__ void __launch_bounds__(kThreads, 7) compact_kernel(CompactArguments p) {
  begin_dependent_launch();
  constexpr int kRowsAtOnce = 32 / kLanes;
  constexpr int kRowsOfWarp = kRowsInFlight * kRowsAtOnce;
  static_assert(kRowsOfWarp <= 32, "a lane reads one position");
  const auto row_of_all = static_cast<unsigned>(row_of_block()), z = row_of_all / p.kv_heads;
  const auto parts = static_cast<unsigned>(parts_of<kLanes>(p.vectors));
  if (z >= p.tensors * parts) return;
  const MovedRows moved = z < parts ? p.keys : p.values;
  const int column = static_cast<int>(z % parts) * kLanes + lane() % kLanes;
  const int64_t g = row_of_all % p.kv_heads;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp()) * kRowsOfWarp;
  const bool has_position = lane() < kRowsOfWarp && first + lane() < p.kept_stride;
  const int position = has_position ? static_cast<int>(p.kept[g * p.kept_stride + first + lane()]) : 0;
  const int rows = column < p.vectors ? static_cast<int>(min(p.count[g] - first, int64_t{kRowsOfWarp})) : 0;
  const char* const from = moved.rows + g * moved.slice_bytes + column * 16;
  const RowPlace place = rows > 0 ? place_of(p.pages, g, first) : RowPlace{};
  char* const to = moved.compacted + place.slice * moved.compacted_slice_bytes +
                   int64_t{place.row} * moved.compacted_row_bytes + column * 16;
  uint32_t kept[kRowsInFlight];
  uint4 vectors[kRowsInFlight] = {};
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    kept[n] = static_cast<uint32_t>(__shfl_sync(kAllLanes, position, n * kRowsAtOnce + lane() / kLanes));
  }
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    if (n * kRowsAtOnce + lane() / kLanes < rows) {
      vectors[n] = *reinterpret_cast<const uint4*>(from + uint64_t{kept[n]} * moved.row_bytes);
    }
  }
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    const int row = n * kRowsAtOnce + lane() / kLanes;
    if (row < rows) *reinterpret_cast<uint4*>(to + int64_t{row} * moved.compacted_row_bytes) = vectors[n];
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
// registers  20 (sm_90a and sm_80)
// bytes      read: 12 for each row and kept entry; written: 4 for each; no FLOP
template <bool kScatters>
__global__ void __launch_bounds__(kThreads) move_numbers_kernel(MoveNumbersArguments p) {
  begin_dependent_launch();
  const int64_t row = row_of_block();
  const int64_t g = row / p.rows_per_head;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= p.from.rows || i >= p.count[g]) return;
  const int64_t kept = p.kept[g * p.kept_stride + i];
  p.to.data[row * p.to.row_stride + (kScatters ? kept : i)] =
      p.from.data[row * p.from.row_stride + (kScatters ? i : kept)];
}

// grid       (ceil(stride / 256), kv_heads)
// block      256; no shared memory
// registers  14 (sm_90a), 12 (sm_80)
// bytes      read: 16 for each chosen slot; written: 8; no FLOP
__global__ void __launch_bounds__(kThreads)
    compact_positions_kernel(CacheSlots slots, PositionLists chosen, int64_t* positions) {
  begin_dependent_launch();
  const int64_t g = row_of_block(), i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (g >= slots.kv_heads || i >= chosen.count[g]) return;
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
  launch_dependent<move_numbers_kernel<kScatters>>(
      {extent_of_rows(ceil_division(kept_stride, kThreads), from.rows), extent(kThreads), 0, stream},
      arguments);
}

template <Storage T>
MovedRows moved_rows(const DeviceTensor<const T>& rows, const DeviceTensor<T>& compacted) {
  require_layout("rows", rows);
  require_layout("compacted", compacted);
  require_range("rows", rows.rows, 0, INT32_MAX);
  require_equal("columns of rows", rows.cols, "columns of compacted", compacted.cols);
  constexpr auto kBytes = int64_t{sizeof(T)};
  require_range("row_stride of rows", rows.row_stride, 0, kMostRowBytes / kBytes);
  require_range("row_stride of compacted", compacted.row_stride, 0, kMostRowBytes / kBytes);
  return {reinterpret_cast<const char*>(rows.data),
          reinterpret_cast<char*>(compacted.data),
          rows.slice_stride * kBytes,
          compacted.slice_stride * kBytes,
          static_cast<uint32_t>(rows.row_stride * kBytes),
          static_cast<uint32_t>(compacted.row_stride * kBytes)};
}

template <int kLanes>
void launch_lanes(const CompactArguments& arguments, int64_t capacity, Stream stream) {
  constexpr int64_t kRowsOfBlock = int64_t{kWarps} * kRowsInFlight * 32 / kLanes;
  const int64_t copies = int64_t{arguments.tensors} * parts_of<kLanes>(arguments.vectors);
  launch_dependent<compact_kernel<kLanes>>(
      {extent_of_rows(ceil_division(capacity, kRowsOfBlock), copies * arguments.kv_heads), extent(kThreads),
       0, stream},
      arguments);
}

void launch_compact(const CompactArguments& arguments, int64_t capacity, Stream stream) {
  if (capacity == 0 || arguments.kv_heads == 0 || arguments.vectors == 0) return;
  if (arguments.vectors <= 8) {
    launch_lanes<8>(arguments, capacity, stream);
  } else if (arguments.vectors <= 16) {
    launch_lanes<16>(arguments, capacity, stream);
  } else {
    launch_lanes<32>(arguments, capacity, stream);
  }
}

template <Storage T>
int vectors_of(int64_t cols) {
  return static_cast<int>(padded<T>(cols) / kVector<T>);
}

}  // namespace

template <Storage T>
void compact(DeviceTensor<const T> rows, const int64_t* kept, int64_t kept_stride, const int64_t* count,
             DeviceTensor<T> compacted, Stream stream) {
  const MovedRows moved = moved_rows(rows, compacted);
  require_equal("slices of rows", rows.slices, "slices of compacted", compacted.slices);
  launch_compact({moved,
                  moved,
                  kept,
                  count,
                  kept_stride,
                  {},
                  static_cast<unsigned>(rows.slices),
                  1,
                  vectors_of<T>(rows.cols)},
                 compacted.rows, stream);
}

template <Storage T>
void compact(DeviceTensor<const T> keys, DeviceTensor<const T> values, const int64_t* kept,
             int64_t kept_stride, const int64_t* count, DeviceTensor<T> compacted_keys,
             DeviceTensor<T> compacted_values, Stream stream, const PageTable& pages) {
  const MovedRows of_keys = moved_rows(keys, compacted_keys),
                  of_values = moved_rows(values, compacted_values);
  const CacheView<T> compacted{.keys = compacted_keys, .values = compacted_values, .pages = pages};
  require_pages(compacted);
  require_equal("KV heads of keys", keys.slices, "KV heads of values", values.slices);
  require_equal("columns of keys", keys.cols, "columns of values", values.cols);
  require_equal("slices of keys", keys.slices, "KV heads of compacted", compacted.kv_heads());
  launch_compact({of_keys, of_values, kept, count, kept_stride, pages, static_cast<unsigned>(keys.slices),
                  kMostTensors, vectors_of<T>(keys.cols)},
                 compacted.capacity(), stream);
}

template void compact(DeviceTensor<const float>, const int64_t*, int64_t, const int64_t*, DeviceTensor<float>,
                      Stream);
template void compact(DeviceTensor<const float>, DeviceTensor<const float>, const int64_t*, int64_t,
                      const int64_t*, DeviceTensor<float>, DeviceTensor<float>, Stream, const PageTable&);
template void compact(DeviceTensor<const Float16>, const int64_t*, int64_t, const int64_t*,
                      DeviceTensor<Float16>, Stream);
template void compact(DeviceTensor<const Float16>, DeviceTensor<const Float16>, const int64_t*, int64_t,
                      const int64_t*, DeviceTensor<Float16>, DeviceTensor<Float16>, Stream, const PageTable&);
template void compact(DeviceTensor<const Bfloat16>, const int64_t*, int64_t, const int64_t*,
                      DeviceTensor<Bfloat16>, Stream);
template void compact(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>, const int64_t*, int64_t,
                      const int64_t*, DeviceTensor<Bfloat16>, DeviceTensor<Bfloat16>, Stream,
                      const PageTable&);

void compact_numbers(NumberRows<const float> numbers, int64_t kv_heads, const int64_t* kept,
                     int64_t kept_stride, const int64_t* count, NumberRows<float> compacted, Stream stream) {
  move_numbers<false>(numbers, kv_heads, kept, kept_stride, count, compacted, stream);
}

void compact_positions(const CacheSlots& slots, const PositionLists& chosen, int64_t* positions,
                       Stream stream) {
  require_range("stride of the chosen slots", chosen.stride, 0, INT32_MAX);
  if (chosen.stride == 0 || slots.kv_heads == 0) return;
  launch_dependent<compact_positions_kernel>(
      {extent_of_rows(ceil_division(chosen.stride, kThreads), slots.kv_heads), extent(kThreads), 0, stream},
      slots, chosen, positions);
}

void scatter_numbers(NumberRows<const float> numbers, int64_t kv_heads, const int64_t* kept,
                     int64_t kept_stride, const int64_t* count, NumberRows<float> to, Stream stream) {
  move_numbers<true>(numbers, kv_heads, kept, kept_stride, count, to, stream);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
