#include <cfloat>
#include <cmath>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "keep_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kMostSweeps = 40;  // a few are enough; rows that cancel to rounding noise would go on

template <Storage T>
struct Arguments {
  DeviceTensor<const T> queries;
  double scale;
  double least;  // singular values below this share of the largest are dropped
  int64_t rows;
  MergeQueries prepared;
  double* work;  // [kv_heads, rows, head_dim + rows + 1]
};

// One group's queries, by rotations made orthogonal: rotations * queries = rows.
struct Rotated {
  int64_t count, head_dim;
  double* rows;       // [count, head_dim]
  double* rotations;  // [count, count]
  double* sizes;      // [count]: lengths of the rows, which are the singular values

  template <Storage T>
  __device__ Rotated(const Arguments<T>& p, int64_t g)
      : count(p.rows),
        head_dim(p.queries.cols),
        rows(p.work + g * count * (head_dim + count + 1)),
        rotations(rows + count * head_dim),
        sizes(rotations + count * count) {}

  // The inner product of two rows. The whole warp calls it.
  __device__ double product(int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t c = lane(); c < head_dim; c += 32) sum += rows[i * head_dim + c] * rows[j * head_dim + c];
    return warp_sum(sum);
  }

  __device__ static void turn(double* one, double* other, int64_t columns, double cosine, double sine) {
    for (int64_t c = lane(); c < columns; c += 32) {
      const double a = one[c], b = other[c];
      one[c] = cosine * a - sine * b;
      other[c] = sine * a + cosine * b;
    }
  }

  // Makes two rows orthogonal, unless they are already, or one of them is as good as zero.
  __device__ bool rotate(int64_t i, int64_t j, double nothing) const {
    const double own = product(i, i), other = product(j, j), both = product(i, j);
    if (own <= nothing || other <= nothing || fabs(both) <= 4 * DBL_EPSILON * sqrt(own) * sqrt(other))
      return false;
    const double zeta = (other - own) / (2 * both);
    const double tangent = (zeta < 0 ? -1 : 1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
    const double cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
    __syncwarp();
    turn(rows + i * head_dim, rows + j * head_dim, head_dim, cosine, sine);
    turn(rotations + i * count, rotations + j * count, count, cosine, sine);
    __syncwarp();
    return true;
  }
};

// The queries that merge: those of every head of the group, or their mean.
template <Storage T>
__device__ void load_queries(const Arguments<T>& p, int64_t g, int64_t group_size, const Rotated& q) {
  const int64_t heads = group_size / q.count;  // of one row
  for (int64_t n = threadIdx.x; n < q.count * q.head_dim; n += kThreads) {
    const int64_t row = n / q.head_dim, c = n % q.head_dim;
    double sum = 0;
    for (int64_t i = 0; i < heads; ++i) {
      const int64_t head = g * group_size + row * heads + i;
      sum += to_float(p.queries.data[head * p.queries.row_stride + c]);
    }
    q.rows[n] = p.scale * (sum / static_cast<double>(heads));
    p.prepared.queries[g * q.count * q.head_dim + n] = static_cast<float>(q.rows[n]);
  }
  for (int64_t n = threadIdx.x; n < q.count * q.count; n += kThreads) {
    q.rotations[n] = n / q.count == n % q.count ? 1 : 0;
  }
}

// The squared length that counts as zero: rounding turns 0 into a few units in the last place of the largest.
__device__ double nothing_of(const Rotated& q) {
  double most = 0;
  for (int64_t i = 0; i < q.count; ++i) most = max(most, q.product(i, i));
  return most * (DBL_EPSILON * DBL_EPSILON);
}

// Every pair of rows once, in rounds of pairs that have no row in common: a tournament of an even number of players.
__device__ bool sweep(const Rotated& q, double nothing) {
  const int64_t others = q.count - 1 + q.count % 2;  // players but one
  bool turned = false;
  for (int64_t round = 0; round < others; ++round) {
    for (int64_t pair = warp(); pair <= others / 2; pair += kWarps) {
      const int64_t i = pair == 0 ? others : (round + pair) % others;
      const int64_t j = (round + others - pair) % others;
      if (i < q.count && j < q.count && q.rotate(min(i, j), max(i, j), nothing)) turned = true;
    }
    __syncthreads();
  }
  return __syncthreads_or(turned ? 1 : 0) != 0;
}

// The pseudo-inverse of one group's queries, by one-sided Jacobi rotations.
//
// grid       kv_heads
// block      128; no shared memory
// registers  72 (sm_90a), 64 (sm_80)
// bytes      read: head_dim sizeof(T) for each query head; written: 4 (2 head_dim + rows) for each row; the workspace lies in
//            the caches
// FLOP       12 rows^2 head_dim for each sweep, of which there are about 6, in fp64
template <Storage T>
__global__ void __launch_bounds__(kThreads) merge_queries_kernel(Arguments<T> p, int64_t group_size) {
  const int64_t g = blockIdx.x;
  const Rotated q(p, g);
  load_queries(p, g, group_size, q);
  __syncthreads();
  const double nothing = nothing_of(q);
  __syncthreads();  // all warps have read the rows that the first sweep turns
  for (int i = 0; i < kMostSweeps && sweep(q, nothing); ++i) {
  }
  for (int64_t i = warp(); i < q.count; i += kWarps) {
    const double size = sqrt(q.product(i, i));
    if (lane() == 0) q.sizes[i] = size;
  }
  __syncthreads();
  double most = 0;
  for (int64_t i = 0; i < q.count; ++i) most = max(most, q.sizes[i]);
  for (int64_t i = warp(); i < q.count; i += kWarps) {
    const double size = q.sizes[i];
    const bool stays = size > 0 && size >= p.least * most;
    for (int64_t c = lane(); c < q.head_dim; c += 32) {
      const double number = stays ? q.rows[i * q.head_dim + c] / size : 0;
      p.prepared.directions[(g * q.count + i) * q.head_dim + c] = static_cast<float>(number);
    }
    for (int64_t c = lane(); c < q.count; c += 32) {
      const double number = stays ? q.rotations[i * q.count + c] / size : 0;
      p.prepared.combinations[(g * q.count + i) * q.count + c] = static_cast<float>(number);
    }
  }
}

}  // namespace

int64_t merge_queries_workspace(int64_t kv_heads, int64_t rows, int64_t head_dim) {
  return kv_heads * rows * (head_dim + rows + 1) * static_cast<int64_t>(sizeof(double));
}

template <Storage T>
void merge_queries(const KeyRule& rule, DeviceTensor<const T> queries, int64_t kv_heads, double scale,
                   const MergeQueries& prepared, Workspace workspace, Stream stream) {
  require_layout("queries", queries);
  require_equal("slices of queries", queries.slices, "queries of a head", 1);
  require_range("head_dim", queries.cols, 1, kMostHeadDim);
  require_groups(queries.rows, kv_heads);
  const int64_t group_size = queries.rows / kv_heads, rows = merging_rows(rule.gqa, group_size);
  require_workspace(workspace, merge_queries_workspace(kv_heads, rows, queries.cols));
  const double nothing = DBL_EPSILON * static_cast<double>(std::max(rows, queries.cols));
  launch<merge_queries_kernel<T>>({extent(kv_heads), extent(kThreads), 0, stream},
                                  Arguments<T>{queries, scale, std::max(rule.rank, nothing), rows, prepared,
                                               static_cast<double*>(workspace.data)},
                                  group_size);
}

template void merge_queries(const KeyRule&, DeviceTensor<const float>, int64_t, double, const MergeQueries&,
                            Workspace, Stream);
template void merge_queries(const KeyRule&, DeviceTensor<const Float16>, int64_t, double, const MergeQueries&,
                            Workspace, Stream);
template void merge_queries(const KeyRule&, DeviceTensor<const Bfloat16>, int64_t, double,
                            const MergeQueries&, Workspace, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
