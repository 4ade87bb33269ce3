// The nearest key during decoding: of one evicted entry for each KV head, which joins it.
#include <bit>

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/primitives/team.hpp>
#include <kvbound/reference/core/session.hpp>

#include "merge_targets.hpp"
#include "nearest_key_search.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using nearest_key_search::clamped;
using nearest_key_search::require_valid;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

struct Shared {
  uint64_t* least;  // [kWarps + 1]

  __host__ __device__ explicit Shared(SharedMemory& memory) : least(memory.array<uint64_t>(kWarps + 1)) {}
};

// The entries of one KV head, and the one among them that was evicted.
template <Storage T, int kDims>
struct Entries {
  using Lanes = RowLanes<T, kDims>;
  using Row = LoadedRow<T, kDims>;

  const T* lanes;  // as LoadedRow takes it
  const float* norms;
  const int64_t* positions;
  uint32_t row_stride;
  int head_dim, count, evicted;
  float direction[Lanes::kNumbers];  // this lane's numbers of the evicted key, divided by its length

  __device__ Entries(const KeyRows<T>& cache, const CacheSlots& slots, int64_t g)
      : lanes(cache.keys.data + g * cache.keys.slice_stride + Lanes::column(0)),
        norms(cache.norms + g * cache.keys.rows),
        positions(slots.positions + g * slots.capacity),
        row_stride(static_cast<uint32_t>(cache.keys.row_stride)),
        head_dim(static_cast<int>(cache.keys.cols)),
        count(static_cast<int>(slots.entries[g])),
        evicted(static_cast<int>(slots.free[g])) {
    Row key;
    key.load(lanes, evicted, row_stride, head_dim);
    const float norm = evicted >= 0 ? norms[evicted] : 0;
#pragma unroll
    for (int i = 0; i < Lanes::kNumbers; ++i) direction[i] = norm > 0 ? key.number(i) / norm : 0;
  }

  __device__ bool competes(int slot) const { return slot < count && slot != evicted; }
  // The sum of this lane's products.
  __device__ float product(const Row& row) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Lanes::kNumbers; ++i) sum = fmaf(direction[i], row.number(i), sum);
    return sum;
  }
};

// The nearest entry so far of those that a lane compares.
struct Nearest {
  uint64_t order = ~uint64_t{0};
  int slot = -1;
  float cosine = 0;

  // Larger cosines first, of equal ones the smaller position; no two entries are equal.
  __device__ void offer(int at, float near, int64_t position) {
    const uint64_t other =
        static_cast<uint64_t>(~radix_selection::ordered_key(near)) << 32 | static_cast<uint32_t>(position);
    if (other >= order) return;
    order = other;
    slot = at;
    cosine = near;
  }
};

struct Joining {
  NearestKeys found;
  double threshold;
  PositionLists kept;
  Clusters clusters;
  int64_t* merged_into;
};

// Writes one KV head's nearest entry, and the cluster of the evicted one.
template <Storage T, int kDims>
__device__ void join(const Joining& p, int64_t g, const Entries<T, kDims>& entries, const Nearest& nearest) {
  const bool merges = nearest.slot >= 0 && static_cast<double>(nearest.cosine) > p.threshold;
  p.found.index[g] = nearest.slot;
  p.found.cosine[g] = nearest.cosine;
  p.kept.positions[g] = merges ? nearest.slot : -1;
  p.kept.count[g] = merges ? 1 : 0;
  p.clusters.members[g] = entries.evicted;
  p.clusters.offsets[2 * g] = 0;
  p.clusters.offsets[2 * g + 1] = merges ? 1 : 0;
  const int64_t not_merged = entries.evicted >= 0 ? kNotMerged : kNothingEvicted;
  p.merged_into[g] = merges ? entries.positions[nearest.slot] : not_merged;
}

// Compares the slots from `first` on that the warp takes at once. Each of the lanes that share rows ends with
// the product of one, successive lanes with the same one's. Rows that do not compete are loaded as well: the
// last row again behind the last.
template <Storage T, int kDims>
__device__ void compare(const Entries<T, kDims>& entries, int first, Nearest& nearest) {
  using Lanes = RowLanes<T, kDims>;
  const auto slot = [&](int n) { return first + n * Lanes::kRowsAtOnce + Lanes::row(); };
  const int last = entries.count - 1;
  LoadedRow<T, kDims> rows[kRowsInFlight];
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    rows[n].load(entries.lanes, min(slot(n), last), entries.row_stride, entries.head_dim);
  }
  constexpr int kSharing = Lanes::kLanes / kRowsInFlight;
  const int own = slot(Lanes::lane_in_row() / kSharing);
  const float norm = entries.norms[min(own, last)];
  const int64_t position = entries.positions[min(own, last)];
  float products[kRowsInFlight];
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) products[n] = entries.product(rows[n]);
  sum_numbers<Lanes::kLanes>(products);
  if (Lanes::lane_in_row() % kSharing > 0 || !entries.competes(own)) return;
  nearest.offer(own, norm > 0 ? clamped(products[0] / norm) : 0, position);
}

// The entry of one KV head nearest to the one that was evicted. Lanes share rows, and four
// rows of each are in flight.
//
//     slots of a cluster of kBlocks = 8, head_dim 128 of 16-bit numbers
//
//     block 0                               block 1              ..   block 7               block 0
//     warp 0  warp 1  ..  warp 31           warp 0  ..
//     0 .. 7  8 .. 15     248 .. 255        256 .. 263                1792 .. 2047          2048 .. 2055  ..
//
//     warp 0  lanes 0 .. 15    slots 0, 2, 4, 6          lanes 0, 4, 8, 12 end with a cosine each
//             lanes 16 .. 31   slots 1, 3, 5, 7          likewise lanes 16, 20, 24, 28
//
// grid       kBlocks kv_heads, in clusters of kBlocks
// block      1024
// shared     264 bytes
// registers  48-64 (sm_90a and sm_80)
// bytes      read: head_dim sizeof(T) + 12 for each entry; written: 60 for each KV head
// FLOP       2 head_dim for each entry
template <int kBlocks, int kDims, Storage T>
__global__ void __launch_bounds__(kThreads, 1)
    nearest_key_kernel(KeyRows<T> cache, CacheSlots slots, Joining joining) {
  begin_dependent_launch();
  constexpr int kWarpRows = RowLanes<T, kDims>::kWarpRows;
  SharedMemory memory;
  const Shared shared(memory);
  const int64_t g = Team<kBlocks>::row();
  const int block = Team<kBlocks>::rank();
  const Entries<T, kDims> entries(cache, slots, g);
  Nearest nearest;
#pragma unroll 1
  for (int first = (block * kWarps + warp()) * kWarpRows; entries.evicted >= 0 && first < entries.count;
       first += kBlocks * kWarps * kWarpRows) {
    compare(entries, first, nearest);
  }
  const uint64_t least = Team<kBlocks>::minimum(nearest.order, shared.least);
  const bool none = least == Nearest().order;
  if (none ? block > 0 || threadIdx.x > 0 : nearest.order != least) return;
  join(joining, g, entries, nearest);
}

}  // namespace

template <Storage T>
void join_nearest(const KeyRows<T>& cache, const CacheSlots& slots, const NearestKeys& nearest,
                  const SimilarTarget& target, const PositionLists& kept, const Clusters& clusters,
                  int64_t* merged_into, Stream stream) {
  require_valid(cache.keys);
  require_equal("KV heads of the slots", slots.kv_heads, "slices of keys", cache.keys.slices);
  require_equal("capacity of the slots", slots.capacity, "rows of keys", cache.keys.rows);
  require_equal("stride of the nearest keys", nearest.stride, "entries that leave", 1);
  require_equal("stride of the clusters", clusters.stride, "entries that leave", 1);
  require_equal("capacity of the clusters", clusters.capacity, "entries that leave", 1);
  if (slots.kv_heads == 0) return;
  const Joining joining{nearest, threshold_of(target), kept, clusters, merged_into};
  by_dims(cache.keys.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch_by_length(slots.capacity, kWarps * RowLanes<T, kDims>::kWarpRows, [&]<int kBlocks> {
      launch_dependent<nearest_key_kernel<kBlocks, kDims, T>>(
          teams<kBlocks>(slots.kv_heads, kThreads, shared_bytes<Shared>(), stream), cache, slots, joining);
    });
  });
}
template void join_nearest(const KeyRows<float>&, const CacheSlots&, const NearestKeys&, const SimilarTarget&,
                           const PositionLists&, const Clusters&, int64_t*, Stream);
template void join_nearest(const KeyRows<Float16>&, const CacheSlots&, const NearestKeys&,
                           const SimilarTarget&, const PositionLists&, const Clusters&, int64_t*, Stream);
template void join_nearest(const KeyRows<Bfloat16>&, const CacheSlots&, const NearestKeys&,
                           const SimilarTarget&, const PositionLists&, const Clusters&, int64_t*, Stream);

// A lane adds its products in a row, then the lanes that share a key add theirs by a tree.
template <Storage T>
KernelArithmetic nearest_key_arithmetic(int64_t head_dim) {
  KernelArithmetic arithmetic{.precision = Precision::fp32};
  by_dims(head_dim, [&]<int kDims>(std::integral_constant<int, kDims>) {
    using Lanes = RowLanes<T, kDims>;
    arithmetic.product_depth = Lanes::kNumbers + std::bit_width(unsigned{Lanes::kLanes} - 1);
  });
  return arithmetic;
}
template KernelArithmetic nearest_key_arithmetic<float>(int64_t);
template KernelArithmetic nearest_key_arithmetic<Float16>(int64_t);
template KernelArithmetic nearest_key_arithmetic<Bfloat16>(int64_t);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
