// What scoring needs to know of a query: its dominant entry, and its output in the space of its head.
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "gram_rows.hpp"
#include "obcache.hpp"
#include "obcache_terms.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace gram_rows;
using namespace obcache_terms;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Cache {
  const int64_t* entries;
  const float* log_votes;
  int64_t capacity;
  int64_t group_size;

  // ln p of a query head's entry.
  __device__ float log_votes_of(int64_t head, int64_t row) const {
    return log_votes ? log_votes[head / group_size * capacity + row] : 0;
  }
};

template <Storage T>
Cache cache_of(const CacheView<T>& cache, int64_t query_heads) {
  require_layout("keys", cache.keys);
  require_groups(query_heads, cache.keys.slices);
  return {cache.entries, cache.log_votes, cache.keys.rows, query_heads / cache.keys.slices};
}

struct DominantShared {
  uint64_t* most;  // [kWarps]

  __host__ __device__ explicit DominantShared(SharedMemory& memory) : most(memory.array<uint64_t>(kWarps)) {}
};

// Orders rows by weight, which is not negative, and equal weights by the smaller row.
__device__ uint64_t order_of(float weight, int64_t row) {
  return static_cast<uint64_t>(__float_as_uint(weight)) << 32 | (0xffffffffu - static_cast<uint32_t>(row));
}

// The row of one query head with the largest weight, if that is above 1/2.
//
// grid       query_heads
// block      256
// shared     64 bytes
// registers  32 (sm_90a and sm_80)
// bytes      read: 4 for each query head and entry, and 4 for its votes; written: 8 for each query head
// FLOP       2 and an exponential for each query head and entry
__global__ void __launch_bounds__(kThreads)
    find_dominants_kernel(Cache cache, const float* logits, const float* log_sum_exp, int64_t* dominant) {
  SharedMemory memory;
  const DominantShared shared(memory);
  const int64_t head = blockIdx.x;
  const int64_t entries = cache.entries[head / cache.group_size];
  uint64_t most = 0;
  for (int64_t row = threadIdx.x; row < entries; row += kThreads) {
    const float z = logits[head * cache.capacity + row] + cache.log_votes_of(head, row);
    const float weight = expf(z - log_sum_exp[head]);
    if (weight > 0.5f) most = max(most, order_of(weight, row));
  }
  most = warp_max(most);
  if (lane() == 0) shared.most[warp()] = most;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kWarps; ++w) most = max(most, shared.most[w]);
  dominant[head] = most == 0 ? -1 : static_cast<int64_t>(0xffffffffu - static_cast<uint32_t>(most));
}

template <Storage T>
struct MeasureArguments {
  Cache cache;
  DeviceTensor<const T> values;
  AttendedQueries queries;
  const float* gram;
  MeasuredQueries measured;
};

struct MeasureShared {
  float* row;  // [head_dim]

  __host__ __device__ MeasureShared(SharedMemory& memory, int64_t head_dim)
      : row(memory.array<float>(head_dim)) {}
};

// The score of a query's dominant entry: ||scale (a v - b o')||^2, with o' the output of the other entries.
template <Change change, Storage T>
__device__ float dominant_score(const MeasureArguments<T>& p, int64_t head, int64_t row, float* difference) {
  const auto head_dim = static_cast<int>(p.values.cols);
  const float others = p.queries.others_log_sum_exp[head];
  const float z = p.queries.logits[head * p.cache.capacity + row];
  const float gap = z + p.cache.log_votes_of(head, row) - others;
  const Factors by = dominant_factors<change>(sigmoid(gap), sigmoid(-gap), z);
  const T* value =
      p.values.data + head / p.cache.group_size * p.values.slice_stride + row * p.values.row_stride;
  __syncwarp();
  for (int c = lane(); c < head_dim; c += 32) {
    difference[c] = by.value * to_float(value[c]) - by.output * p.queries.others_outputs[head * head_dim + c];
  }
  __syncwarp();
  const float* gram = p.gram ? p.gram + head * head_dim * head_dim : nullptr;
  const float square = not_negative(GramRows<1>(difference, gram, head_dim).product(0, difference, head_dim));
  const bool only = others == kNothing;
  if (only && change == Change::exact) return -kNothing;
  return by.scale * by.scale * square;
}

// One query head's output times G, its squared length, and the score of the dominant entry: a warp has one head.
//
// grid       query_heads
// block      32
// shared     4 head_dim bytes
// registers  64 (sm_90a and sm_80)
// bytes      read: 4 head_dim^2 of G, once or twice, and up to 8 head_dim; written: 4 head_dim + 8 for each query head
// FLOP       2 head_dim^2 for each query head, twice where it has a dominant entry
template <Change change, Storage T>
__global__ void __launch_bounds__(32) measure_queries_kernel(MeasureArguments<T> p) {
  SharedMemory memory;
  const MeasureShared shared(memory, p.values.cols);
  const int64_t head = blockIdx.x;
  const auto head_dim = static_cast<int>(p.values.cols);
  for (int c = lane(); c < head_dim; c += 32) shared.row[c] = p.queries.outputs[head * head_dim + c];
  __syncwarp();
  const GramRows<1> products(shared.row, p.gram ? p.gram + head * head_dim * head_dim : nullptr, head_dim);
  const float square = products.product(0, shared.row, head_dim);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    const int column = lane() + 32 * i;
    if (column < head_dim) p.measured.gram_outputs[head * head_dim + column] = products.numbers[0][i];
  }
  if (lane() == 0) p.measured.output_norms[head] = not_negative(square);
  if (!p.measured.dominant || p.measured.dominant[head] < 0) return;
  const float score = dominant_score<change>(p, head, p.measured.dominant[head], shared.row);
  if (lane() == 0) p.measured.dominant_scores[head] = score;
}

}  // namespace

template <Storage T>
void find_dominants(const CacheView<T>& cache, const float* logits, const float* log_sum_exp,
                    int64_t query_heads, int64_t* dominant, Stream stream) {
  const Cache rows = cache_of(cache, query_heads);
  require_range("capacity", rows.capacity, 0, INT32_MAX);
  launch<find_dominants_kernel>(
      {extent(query_heads), extent(kThreads), shared_bytes<DominantShared>(), stream}, rows, logits,
      log_sum_exp, dominant);
}

template <Storage T>
void measure_queries(Change change, const CacheView<T>& cache, const AttendedQueries& queries,
                     const float* gram, int64_t query_heads, const MeasuredQueries& measured, Stream stream) {
  require_layout("values", cache.values);
  require_range("head_dim", cache.values.cols, 1, kMostHeadDim);
  const MeasureArguments<T> arguments{cache_of(cache, query_heads), cache.values, queries, gram, measured};
  for_change(change, [&]<Change of>() {
    launch<measure_queries_kernel<of, T>>(
        {extent(query_heads), extent(32), shared_bytes<MeasureShared>(cache.values.cols), stream}, arguments);
  });
}

template void find_dominants(const CacheView<float>&, const float*, const float*, int64_t, int64_t*, Stream);
template void find_dominants(const CacheView<Float16>&, const float*, const float*, int64_t, int64_t*,
                             Stream);
template void find_dominants(const CacheView<Bfloat16>&, const float*, const float*, int64_t, int64_t*,
                             Stream);
template void measure_queries(Change, const CacheView<float>&, const AttendedQueries&, const float*, int64_t,
                              const MeasuredQueries&, Stream);
template void measure_queries(Change, const CacheView<Float16>&, const AttendedQueries&, const float*,
                              int64_t, const MeasuredQueries&, Stream);
template void measure_queries(Change, const CacheView<Bfloat16>&, const AttendedQueries&, const float*,
                              int64_t, const MeasuredQueries&, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
