// Weighted sums of the rows of a cluster's entries, for kernels in which some lanes have a cluster together.
//
// A group of lanes has a row together (primitives/row_lanes.hpp). For head_dim 128 of 16-bit numbers:
//
//     lanes    0         1         ...  15        16 ..
//              8 columns 8 columns      8 columns
//              |______ cluster i ______________|  |__ cluster i + 1 __ ...
//
//     entries  kept, member, member, ...
//
// The entries' rows and weights are read once, by one load of all lanes, into shared memory; then four rows
// at a time are in flight, each of which is added to the sums of kHeads rows of weights. Entries are added in
// their order, the kept one first, so that a sum does not depend on how many lanes a cluster has.
#pragma once

#include <limits>
#include <type_traits>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>

#include "cluster_sums.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace cluster_sums {

inline constexpr int kRowsThreads = 128;
inline constexpr int kHeadsAtOnce = WeightLayout::kTogether;  // rows of weights for which a row is read once

/// The lanes of a block: groups that have a row each.
template <Storage T, int kDims>
struct ClusterLanes : RowLanes<T, kDims> {
  using RowLanes<T, kDims>::kLanes;
  using RowLanes<T, kDims>::kVectorNumbers;
  using RowLanes<T, kDims>::lane_in_row;
  static constexpr int kGroups = kRowsThreads / kLanes;

  /// The calling lane's group.
  __device__ static int group() { return static_cast<int>(threadIdx.x) / kLanes; }
  /// Where the lane's four numbers 4 quad, ... lie in a row that is stored as lanes read it, and the
  /// column of the number there.
  __device__ static int place(int quad) { return (quad * kLanes + lane_in_row()) * 4; }
  __device__ static int column_at(int place) {
    constexpr int kQuads = kVectorNumbers / 4;  // of a vector
    const int quad = place / (4 * kLanes), lane = place / 4 % kLanes;
    return (lane + quad / kQuads * kLanes) * kVectorNumbers + quad % kQuads * 4 + place % 4;
  }
  /// The lanes of the group among all lanes of the warp.
  __device__ static unsigned lanes_of_group() {
    if constexpr (kLanes == 32) {
      return kAllLanes;
    } else {
      return ((1U << kLanes) - 1) << (lane() / kLanes * kLanes);
    }
  }
};

/// The numbers that a lane has of a row, as single precision.
template <Storage T, int kDims>
struct LaneRow {
  using Lanes = ClusterLanes<T, kDims>;

  float numbers[Lanes::kNumbers] = {};

  /// Calls work(column, number) for the numbers of this lane below head_dim.
  template <class Work>
  __device__ void each(int head_dim, const Work& work) {
#pragma unroll
    for (int i = 0; i < Lanes::kNumbers; ++i) {
      const int column = Lanes::column(i / Lanes::kVectorNumbers) + i % Lanes::kVectorNumbers;
      if (column < head_dim) work(column, numbers[i]);
    }
  }
  /// Calls work(number, other) for all numbers of this lane and those of a row in shared memory or among the
  /// parts, which lies there as lanes read it: four numbers of each lane, then the next four of each.
  template <class Work>
  __device__ void with(const float* others, const Work& work) {
#pragma unroll
    for (int quad = 0; quad < Lanes::kNumbers / 4; ++quad) {
      const float4 four = *reinterpret_cast<const float4*>(others + Lanes::place(quad));
      work(numbers[4 * quad], four.x);
      work(numbers[4 * quad + 1], four.y);
      work(numbers[4 * quad + 2], four.z);
      work(numbers[4 * quad + 3], four.w);
    }
  }
  /// Writes the numbers below head_dim, by fours if head_dim is a multiple of four.
  __device__ void store_numbers(float* to, int head_dim) {
    if (head_dim % 4 != 0) {
      each(head_dim, [&](int c, float& number) { to[c] = number; });
      return;
    }
#pragma unroll
    for (int quad = 0; quad < Lanes::kNumbers / 4; ++quad) {
      const int column = Lanes::column_at(Lanes::place(quad));
      if (column >= head_dim) continue;
      *reinterpret_cast<float4*>(to + column) = {numbers[4 * quad], numbers[4 * quad + 1],
                                                 numbers[4 * quad + 2], numbers[4 * quad + 3]};
    }
  }
  __device__ void store(float* to) const {
#pragma unroll
    for (int quad = 0; quad < Lanes::kNumbers / 4; ++quad) {
      *reinterpret_cast<float4*>(to + Lanes::place(quad)) = {numbers[4 * quad], numbers[4 * quad + 1],
                                                             numbers[4 * quad + 2], numbers[4 * quad + 3]};
    }
  }
};

/// sum += weight * row
template <Storage T, int kDims>
__device__ void add_row(const LoadedRow<T, kDims>& row, float weight, LaneRow<T, kDims>& sum) {
#pragma unroll
  for (int i = 0; i < RowLanes<T, kDims>::kNumbers; ++i) {
    sum.numbers[i] = fmaf(weight, row.number(i), sum.numbers[i]);
  }
}

/// The weights of one entry in kHeads sums.
template <int kHeads>
struct alignas(4 * kHeads) EntryWeights {
  float numbers[kHeads] = {};
};

/// The numbers of one entry for `together` rows of weights, which lie side by side
/// (WeightLayout); 0 for others.
template <int kHeads>
__device__ EntryWeights<kHeads> load_weights(const float* from, int together) {
  if (together == kHeads) return *reinterpret_cast<const EntryWeights<kHeads>*>(from);
  EntryWeights<kHeads> weights;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h < together) weights.numbers[h] = from[h];
  }
  return weights;
}

/// The entries of each group's cluster in shared memory: up to 64 members and the kept one, filled up to a
/// multiple of four by entries that are none.
template <int kHeads>
struct StagedEntries {
  static constexpr int kEntries = static_cast<int>(kChunk) + 4;

  int* rows;                      // [groups, kEntries]; -1: none
  EntryWeights<kHeads>* weights;  // [groups, kEntries]

  __host__ __device__ StagedEntries(SharedMemory& memory, int groups)
      : rows(memory.array<int>(groups * kEntries)),
        weights(memory.array<EntryWeights<kHeads>>(groups * kEntries)) {}
};

/// Writes `count` entries of the group's cluster to shared memory: row(e), weights(e). The whole warp calls
/// it, before which it must have read what was there.
template <Storage T, int kDims, int kHeads, class Row, class Weights>
__device__ void stage_entries(const StagedEntries<kHeads>& staged, int count, const Row& row,
                              const Weights& weights) {
  using Lanes = ClusterLanes<T, kDims>;
  const int first = Lanes::group() * staged.kEntries;
  const int filled = static_cast<int>(round_up(count, kRowsInFlight));
#pragma unroll 1
  for (int e = Lanes::lane_in_row(); e < filled; e += Lanes::kLanes) {
    int own_row = -1;
    EntryWeights<kHeads> own_weights;
    if (e < count) {  // both loads before the first store
      own_row = row(e);
      own_weights = weights(e);
    }
    staged.rows[first + e] = own_row;
    staged.weights[first + e] = own_weights;
  }
  __syncwarp();
}

/// sums[h] += weights[h] row for the entries that the group has staged, in their order.
///
/// lanes  the number that the lane's first vector of row 0 begins with
template <Storage T, int kDims, int kHeads>
__device__ void add_staged(const DeviceTensor<const T>& entries, const T* lanes,
                           const StagedEntries<kHeads>& staged, int count,
                           LaneRow<T, kDims> (&sums)[kHeads]) {
  const auto row_bytes = static_cast<uint32_t>(entries.row_stride) * uint32_t{sizeof(T)};
  const int first = ClusterLanes<T, kDims>::group() * staged.kEntries;
#pragma unroll 1
  for (int e = 0; e < count; e += kRowsInFlight) {
    const int4 at = *reinterpret_cast<const int4*>(staged.rows + first + e);
    const int rows[kRowsInFlight] = {at.x, at.y, at.z, at.w};
    LoadedRow<T, kDims> loaded[kRowsInFlight];
#pragma unroll
    for (int n = 0; n < kRowsInFlight; ++n) {
      const auto from =
          reinterpret_cast<const char*>(lanes) + uint64_t{static_cast<uint32_t>(rows[n])} * row_bytes;
      loaded[n].load(reinterpret_cast<const T*>(from), rows[n] >= 0, static_cast<int>(entries.cols));
    }
#pragma unroll
    for (int n = 0; n < kRowsInFlight; ++n) {
      const EntryWeights<kHeads> weights = staged.weights[first + e + n];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) add_row(loaded[n], weights.numbers[h], sums[h]);
    }
  }
}

/// The clusters of one KV head, by pointers that are formed once for a block.
template <Storage T, int kDims>
struct HeadClusters {
  const T* lanes;          // as add_staged takes it
  const int64_t* offsets;  // [capacity + 1]
  const int64_t* members;  // [stride]
  const int64_t* kept;     // [capacity]
  const float* parts;      // [slots, rows, kDims]
  int capacity, heads;

  __device__ HeadClusters(const Sums<T>& p, int64_t g)
      : lanes(p.entries.data + g * p.entries.slice_stride + RowLanes<T, kDims>::column(0)),
        offsets(p.clusters.offsets + g * (p.clusters.capacity + 1)),
        members(p.clusters.members + g * p.clusters.stride),
        kept(p.kept.positions + g * p.kept.stride),
        parts(p.parts + p.part(g, 0, 0)),
        capacity(static_cast<int>(p.clusters.capacity)),
        heads(static_cast<int>(p.weights.rows)) {}
};

/// One kept entry and its members, as a group of lanes sees them.
struct Cluster {
  int i;
  int from = 0, to = 0;  // the places of its members; equal if there is no such kept entry

  template <Storage T, int kDims>
  __device__ Cluster(const HeadClusters<T, kDims>& p, int64_t kept) : i(static_cast<int>(kept)) {
    if (kept >= p.capacity) return;
    const int64_t* const offsets = p.offsets + kept;
    from = static_cast<int>(offsets[0]);
    to = static_cast<int>(offsets[1]);
  }
  // Counted where it is used, so that nothing waits for the offsets of a cluster that is not its turn yet.
  __device__ int members() const { return to - from; }
  __device__ bool merges() const { return members() > 0; }
  __device__ bool is_large() const { return members() > kChunk; }
  /// The entries that stage_entries takes: the kept one and up to 64 members; a large cluster's have parts.
  __device__ int entries() const { return !merges() ? 0 : is_large() ? 1 : 1 + members(); }
  template <Storage T, int kDims>
  __device__ int row(const HeadClusters<T, kDims>& p, int entry) const {
    return static_cast<int>(*(entry == 0 ? p.kept + i : p.members + from + entry - 1));
  }
  /// Adds a large cluster's parts with the weights of rows first_head, ... as far as there are such rows.
  template <Storage T, int kDims, int kHeads>
  __device__ void add_parts(const HeadClusters<T, kDims>& p, int first_head,
                            LaneRow<T, kDims> (&sums)[kHeads]) const {
    const int64_t rows = int64_t{p.heads} * kDims;
    const float* part = p.parts + from / kChunk * rows + first_head * kDims;
#pragma unroll 1
    for (int n = 0; n < members(); n += kPartMembers) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (first_head + h >= p.heads) break;
        sums[h].with(part + h * kDims, [](float& number, float other) { number += other; });
      }
      part += rows;
    }
  }
};

/// The weights of a KV head's entries in rows first_row, ..., which lie side by side.
struct HeadWeights {
  const float *kept, *members;  // [capacity, together], [stride, together]
  int64_t before_kept;          // so many numbers of kept entries lie before this KV head's
  int together;

  template <Storage T>
  __device__ HeadWeights(const Sums<T>& p, int64_t g, int first_row)
      : kept(p.weights.kept), members(p.weights.members) {
    // As WeightLayout says, in 32 bits.
    const int rows = static_cast<int>(p.weights.rows), kv_heads = static_cast<int>(p.entries.slices);
    together = min(static_cast<int>(WeightLayout::kTogether), rows - first_row);
    const int64_t before = first_row * kv_heads + static_cast<int>(g) * together;
    before_kept = before * p.clusters.capacity;
    kept += before_kept;
    members += before * p.clusters.stride;
  }

  /// The weights of the member at this place.
  template <int kHeads>
  __device__ EntryWeights<kHeads> of_member(int place) const {
    return load_weights<kHeads>(members + place * together, together);
  }
  /// Of one of a cluster's entries.
  template <int kHeads>
  __device__ EntryWeights<kHeads> of(const Cluster& cluster, int entry) const {
    const float* const all = entry == 0 ? kept : members;
    const int place = entry == 0 ? cluster.i : cluster.from + entry - 1;
    return load_weights<kHeads>(all + place * together, together);
  }
};

/// The smallest number that is stored as infinity.
template <Storage T>
inline constexpr float kTooLarge = std::is_same_v<T, Bfloat16>  ? 0x1.FFp127F
                                   : std::is_same_v<T, Float16> ? 65520.0F
                                                                : std::numeric_limits<float>::infinity();

/// to_storage's bits, but for NaN, in place of which any number may be returned.
template <Storage T>
__device__ uint16_t rounded(float number) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const uint32_t bits = __float_as_uint(number);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  } else {
    return to_storage<T>(number).bits;
  }
}

/// Writes the row of kept entry i, by whole vectors where head_dim ends with one. All
/// lanes of a group call it.
template <Storage T, int kDims>
__device__ void store_row(const MergedRows<T>& merged, int64_t g, int64_t i, int head_dim,
                          LaneRow<T, kDims>& row) {
  using Lanes = ClusterLanes<T, kDims>;
  T* const to = merged.row_of(g, i);
  if (head_dim % Lanes::kVectorNumbers != 0) {
    row.each(head_dim, [&](int c, float& number) { to[c] = merged.stored(number); });
    return;
  }
  bool fits = true;
#pragma unroll
  for (int v = 0; v < Lanes::kVectors; ++v) {
    if (Lanes::column(v) >= head_dim) continue;
    uint32_t words[4] = {};
#pragma unroll
    for (int n = 0; n < Lanes::kVectorNumbers; ++n) {
      const float number = row.numbers[v * Lanes::kVectorNumbers + n];
      fits = fits && fabsf(number) < kTooLarge<T>;
      if constexpr (sizeof(T) == 4) {
        words[n] = __float_as_uint(number);
      } else {
        words[n / 2] |= uint32_t{rounded<T>(number)} << (n % 2 * 16);
      }
    }
    *reinterpret_cast<uint4*>(to + Lanes::column(v)) = {words[0], words[1], words[2], words[3]};
  }
  if (!fits) merged.reports();
}

}  // namespace cluster_sums
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
