#include "step_changes.hpp"

#include <kvbound/cuda/merging/key_lengths.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 64;

template <Storage T>
struct Arguments {
  DeviceTensor<const T> keys, values;
  CacheSlots slots;
  PositionLists kept;
  const int64_t* members;
  int64_t group_size;
  StepChanges<T> changes;
};

// One KV head's merged entry: a warp has its key, the other one its value.
//
// grid       kv_heads
// block      64; no shared memory
// registers  29-32 (sm_90a and sm_80)
// bytes      read: 2 padded rows, 24 and 8 for each query head; written: 2 padded rows, 8
//            and 8 for each query head
// FLOP       3 head_dim for each KV head
template <int kDims, Storage T>
__global__ void __launch_bounds__(kThreads) keep_changes_kernel(Arguments<T> p) {
  begin_dependent_launch();
  using Lanes = RowLanes<T, kDims>;
  const int64_t g = blockIdx.x;
  if (p.kept.count[g] == 0) return;
  const int64_t slot = p.kept.positions[g], member = p.members[g], capacity = p.slots.capacity;
  const bool has_key = warp() == 0;
  const DeviceTensor<const T>& rows = has_key ? p.keys : p.values;
  const DeviceTensor<T>& copies = has_key ? p.changes.keys : p.changes.values;
  const T* const from = rows.data + g * rows.slice_stride + slot * rows.row_stride;
  T* const to = copies.data + g * copies.slice_stride;
#pragma unroll 1
  for (int64_t c = lane() * kVector<T>; c < padded<T>(rows.cols); c += 32 * kVector<T>) {
    *reinterpret_cast<uint4*>(to + c) = *reinterpret_cast<const uint4*>(from + c);
  }
  LoadedRow<T, kDims> row[1];
  row[0].load(from + Lanes::column(0), Lanes::row() == 0 ? 0 : -1, 0, static_cast<int>(rows.cols));
  const float length = key_lengths::own_length(row);  // the value's is not used
  if (threadIdx.x == 0) p.changes.key_norms[g * capacity + slot] = length;
  if (threadIdx.x == 0 && p.changes.votes) p.changes.votes[g] = p.slots.votes[g * capacity + slot];
#pragma unroll 1
  for (int64_t i = threadIdx.x; p.changes.log_scores && i < p.group_size; i += kThreads) {
    const int64_t head = g * p.group_size + i;
    p.changes.kept_scores[head] = p.changes.log_scores[head * capacity + slot];
    p.changes.member_scores[head] = p.changes.log_scores[head * capacity + member];
  }
}

template <Storage T>
void require_fitting(const char* name, const DeviceTensor<T>& copies, const DeviceTensor<const T>& rows) {
  require_layout(name, copies);
  require_equal("slices of copies", copies.slices, "slices of keys", rows.slices);
  require_equal("columns of copies", copies.cols, "columns of keys", rows.cols);
}

}  // namespace

template <Storage T>
void keep_changes(DeviceTensor<const T> keys, DeviceTensor<const T> values, const CacheSlots& slots,
                  const MergedEntries& merged, int64_t query_heads, const StepChanges<T>& changes,
                  Stream stream) {
  require_layout("keys", keys);
  require_layout("values", values);
  require_range("head_dim", keys.cols, 1, kMostHeadDim);
  require_equal("slices of values", values.slices, "slices of keys", keys.slices);
  require_equal("columns of values", values.cols, "columns of keys", keys.cols);
  require_equal("KV heads of the slots", slots.kv_heads, "slices of keys", keys.slices);
  require_equal("capacity of the slots", slots.capacity, "rows of keys", keys.rows);
  require_fitting("keys that are recorded", changes.keys, keys);
  require_fitting("values that are recorded", changes.values, keys);
  require_equal("kept entries of a KV head", merged.kept.stride, "entries that merge", 1);
  require_groups(query_heads, slots.kv_heads);
  by_dims(keys.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch_dependent<keep_changes_kernel<kDims, T>>(
        {extent(slots.kv_heads), extent(kThreads), 0, stream},
        Arguments<T>{keys, values, slots, merged.kept, merged.clusters.members, query_heads / slots.kv_heads,
                     changes});
  });
}

template void keep_changes(DeviceTensor<const float>, DeviceTensor<const float>, const CacheSlots&,
                           const MergedEntries&, int64_t, const StepChanges<float>&, Stream);
template void keep_changes(DeviceTensor<const Float16>, DeviceTensor<const Float16>, const CacheSlots&,
                           const MergedEntries&, int64_t, const StepChanges<Float16>&, Stream);
template void keep_changes(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>, const CacheSlots&,
                           const MergedEntries&, int64_t, const StepChanges<Bfloat16>&, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
