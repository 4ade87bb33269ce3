// OBCache's scores of a cache by a decode step's queries.
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/window/obcache_terms.hpp>

#include "obcache.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace obcache_terms;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kWarpRows = 8;  // of the cache, one after the other
constexpr int kBlockRows = kWarps * kWarpRows;

template <Storage T>
struct Arguments {
  CacheView<T> cache;
  AttendedQueries queries;
  MeasuredQueries measured;
  const float* norms;
  int64_t group_size;
  float* scores;
};

// v . (o G) for one row of the cache: a lane has the vectors l, l + 32, ... of the row.
template <Storage T>
__device__ float product(const T* value, const float* output, int head_dim) {
  float sum = 0;
  for (int first = lane() * static_cast<int>(kVector<T>); first < head_dim;
       first += 32 * static_cast<int>(kVector<T>)) {
    const Vector<T> numbers = load16(value + first);
    for (int i = 0; i < kVector<T> && first + i < head_dim; ++i) sum += numbers.values[i] * output[first + i];
  }
  return warp_sum(sum);
}

// The scores of 32 rows of a KV head's cache for all query heads of its group: a warp has eight rows.
//
// grid       (ceil(capacity / 32), kv_heads)
// block      128; no shared memory
// registers  32-47 (sm_90a), 31-40 (sm_80)
// bytes      read: a padded row of values for each entry, again for each query head from the L1 cache; 4 head_dim of an
//            output for each query head and entry, likewise; 8 for each query head and entry; written: 4 for each
// FLOP       2 head_dim + 10 and an exponential for each query head and entry
template <Change change, Storage T>
__global__ void __launch_bounds__(kThreads, 8) step_change_scores_kernel(Arguments<T> p) {
  const auto head_dim = static_cast<int>(p.cache.values.cols);
  const int64_t g = blockIdx.y, first_head = g * p.group_size, capacity = p.cache.values.rows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockRows + warp() * kWarpRows;
  const int64_t last = min(first + kWarpRows, p.cache.entries[g]);
  for (int64_t row = first; row < last; ++row) {
    const T* value = p.cache.values.data + g * p.cache.values.slice_stride + row * p.cache.values.row_stride;
    const float votes = p.cache.log_votes ? p.cache.log_votes[g * capacity + row] : 0;
    for (int64_t i = 0; i < p.group_size; ++i) {
      const int64_t head = first_head + i, place = head * capacity + row;
      const float along =
          change == Change::value ? 0 : product(value, p.measured.gram_outputs + head * head_dim, head_dim);
      if (lane() > 0) continue;
      const float z = p.queries.logits[place];
      const bool leads = leaves_out_dominant(change) && p.measured.dominant[head] == row;
      const float output_norm = change == Change::value ? 0 : p.measured.output_norms[head];
      p.scores[place] = leads ? p.measured.dominant_scores[head]
                              : score_of(table_2<change>(z + votes - p.queries.log_sum_exp[head], z),
                                         p.norms[place], along, output_norm);
    }
  }
}

}  // namespace

template <Storage T>
void step_change_scores(Change change, const CacheView<T>& cache, const AttendedQueries& queries,
                        const MeasuredQueries& measured, const float* norms, int64_t query_heads,
                        float* scores, Stream stream) {
  require_layout("values", cache.values);
  require_groups(query_heads, cache.values.slices);
  require_range("head_dim", cache.values.cols, 1, kMostHeadDim);
  if (cache.values.rows == 0) return;
  const int64_t group_size = query_heads / cache.values.slices;
  const Arguments<T> arguments{cache, queries, measured, norms, group_size, scores};
  for_change(change, [&]<Change of>() {
    launch<step_change_scores_kernel<of, T>>(
        {extent(ceil_division(cache.values.rows, kBlockRows), cache.values.slices), extent(kThreads), 0,
         stream},
        arguments);
  });
}

template void step_change_scores(Change, const CacheView<float>&, const AttendedQueries&,
                                 const MeasuredQueries&, const float*, int64_t, float*, Stream);
template void step_change_scores(Change, const CacheView<Float16>&, const AttendedQueries&,
                                 const MeasuredQueries&, const float*, int64_t, float*, Stream);
template void step_change_scores(Change, const CacheView<Bfloat16>&, const AttendedQueries&,
                                 const MeasuredQueries&, const float*, int64_t, float*, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
