// What scoring needs to know of a query: its output in the space of its head, and the
// score of its dominant entry.
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/paged_rows.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/window/obcache_terms.hpp>

#include "gram_rows.hpp"
#include "obcache.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace gram_rows;
using namespace obcache_terms;

template <Storage T>
struct MeasureArguments {
  CacheView<T> cache;
  AttendedQueries queries;
  const float* gram;
  MeasuredQueries measured;
  int64_t capacity;

  __device__ int head_dim() const { return static_cast<int>(cache.values.cols); }
  // G of a query head; null for the head's space.
  __device__ const float* gram_of(int64_t head) const {
    return gram ? gram + head * head_dim() * head_dim() : nullptr;
  }
  // ln p of a KV head's entry.
  __device__ float log_votes_of(int64_t g, int64_t row) const {
    return cache.log_votes ? cache.log_votes[g * capacity + row] : 0;
  }
};

struct MeasureShared {
  float* row;  // [head_dim]

  __host__ __device__ MeasureShared(SharedMemory& memory, int64_t head_dim)
      : row(memory.array<float>(head_dim)) {}
};

// The score of a query's dominant entry, a row of KV head g: ||scale (a v - b o')||^2, with o' the
// output of the other entries.
//
// n  the query, counted over all heads
template <Change change, Storage T>
__device__ float dominant_score(const MeasureArguments<T>& p, int64_t g, int64_t head, int64_t n, int64_t row,
                                float* difference) {
  const DominantEntries& dominants = p.queries.dominants;
  const int head_dim = p.head_dim();
  const T* value = numbers_at(p.cache.values, place_of(p.cache.pages, g, row));
  float numbers[kLaneColumns], outputs[kLaneColumns];  // in flight together with the factors' numbers
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    const int c = lane() + 32 * i;
    numbers[i] = c < head_dim ? to_float(value[c]) : 0;
    outputs[i] = c < head_dim ? dominants.others_output[n * head_dim + c] : 0;
  }
  const float others = dominants.others_log_sum_exp[n], z = dominants.logits[n];
  const float gap = z + p.log_votes_of(g, row) - others;
  const Factors by = dominant_factors<change>(sigmoid(gap), sigmoid(-gap), z);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    const int c = lane() + 32 * i;
    if (c < head_dim) difference[c] = by.value * numbers[i] - by.output * outputs[i];
  }
  __syncwarp();
  const float square =
      not_negative(GramRows<1>(difference, p.gram_of(head), head_dim).product(0, difference, head_dim));
  const bool only = others == kNothing;
  if (only && change == Change::exact) return -kNothing;
  return by.scale * by.scale * square;
}

// One query's output times G, its squared length, and the score of the dominant entry: a warp has one query.
//
// grid       (query_heads, window)
// block      32
// shared     4 head_dim bytes
// registers  64 (sm_90a), 63 (sm_80)
// bytes      read: 4 head_dim^2 of G, once or twice, from the L2 cache, and up to 8 head_dim; written: 4
//            head_dim + 16 for each query
// FLOP       2 head_dim^2 for each query, twice where it has a dominant entry
template <Change change, Storage T>
__global__ void __launch_bounds__(32) measure_queries_kernel(MeasureArguments<T> p, int64_t group_size) {
  begin_dependent_launch();
  SharedMemory memory;
  const MeasureShared shared(memory, p.cache.values.cols);
  const int64_t head = blockIdx.x, n = head * p.queries.window + blockIdx.y;  // as attended queries lie
  const int64_t place = int64_t{blockIdx.y} * gridDim.x + head;               // as measured queries lie
  const int head_dim = p.head_dim();
  const int64_t row =
      p.queries.dominants.rows ? p.queries.dominants.rows[n] : -1;  // in flight together with the output
  for (int c = lane(); c < head_dim; c += 32) shared.row[c] = p.queries.outputs[n * head_dim + c];
  __syncwarp();
  const GramRows<1> products(shared.row, p.gram_of(head), head_dim);
  const float square = products.product(0, shared.row, head_dim);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    const int column = lane() + 32 * i;
    if (column < head_dim) p.measured.gram_outputs[place * head_dim + column] = products.numbers[0][i];
  }
  if (lane() == 0) p.measured.output_norms[place] = not_negative(square);
  if (!p.queries.dominants.rows) return;
  if (lane() == 0) p.measured.dominant[place] = row;
  if (row < 0) return;
  const float score = dominant_score<change>(p, head / group_size, head, n, row, shared.row);
  if (lane() == 0) p.measured.dominant_scores[place] = score;
}

}  // namespace

template <Storage T>
void measure_queries(Change change, const CacheView<T>& cache, const AttendedQueries& queries,
                     const float* gram, int64_t query_heads, const MeasuredQueries& measured, Stream stream) {
  require_layout("values", cache.values);
  require_pages(cache);
  require_groups(query_heads, cache.kv_heads());
  require_range("head_dim", cache.values.cols, 1, kMostHeadDim);
  require_range("window", queries.window, 1, INT32_MAX);
  const MeasureArguments<T> arguments{cache, queries, gram, measured, cache.capacity()};
  for_change(change, [&]<Change of>() {
    launch_dependent<measure_queries_kernel<of, T>>({extent(query_heads, queries.window), extent(32),
                                                     shared_bytes<MeasureShared>(cache.values.cols), stream},
                                                    arguments, query_heads / cache.kv_heads());
  });
}

template void measure_queries(Change, const CacheView<float>&, const AttendedQueries&, const float*, int64_t,
                              const MeasuredQueries&, Stream);
template void measure_queries(Change, const CacheView<Float16>&, const AttendedQueries&, const float*,
                              int64_t, const MeasuredQueries&, Stream);
template void measure_queries(Change, const CacheView<Bfloat16>&, const AttendedQueries&, const float*,
                              int64_t, const MeasuredQueries&, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
