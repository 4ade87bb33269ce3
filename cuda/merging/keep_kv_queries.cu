#include <algorithm>
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
constexpr int kPairLanes = 8;                  // have a pair of rows together
constexpr int kPairs = kThreads / kPairLanes;  // of a block at a time
constexpr int kMostSweeps = 40;  // a few are enough; rows that cancel to rounding noise would go on
// The cosine of rows that are not turned any more (reference/bounds/merge_cluster_errors.md, "Joint corrections").
constexpr double kOrthogonal = 0x1p-32;

template <Storage T>
struct Arguments {
  DeviceTensor<const T> queries;
  double scale;
  double least;  // singular values below this share of the largest are dropped
  int group_size;
  MergeQueries prepared;
};

struct Shape {
  int rows, head_dim;
};

// One group's queries, by rotations made orthogonal: rotations * queries = rows. In shared memory, each row in front of its
// rotation, so that both are turned as one. Zeros fill both up to multiples of 16 columns.
struct Rotated {
  int count, head_dim;
  int rotation;     // where a row's rotation begins
  int stride;       // of rows, which all begin in the same bank
  double* rows;     // [count, stride]
  double* lengths;  // [count]: squared; in the end the squared singular values

  __host__ __device__ Rotated(SharedMemory& memory, const Shape& shape)
      : count(shape.rows),
        head_dim(shape.head_dim),
        rotation(static_cast<int>(round_up(head_dim, 2 * kPairLanes))),
        stride(rotation + static_cast<int>(round_up(count, 2 * kPairLanes))),
        rows(memory.array<double>(int64_t{count} * stride)),
        lengths(memory.array<double>(count)) {}

  __device__ static int lane_of_pair() { return lane() % kPairLanes; }
  __device__ static int first_pair() { return static_cast<int>(threadIdx.x) / kPairLanes; }
  // Calls work(c) for the lane's columns below `columns`, a multiple of 16. Every second pair swaps each two of them, since two
  // pairs share a wavefront: one then reads 16 banks, and the other one the other 16.
  template <class Work>
  __device__ static void each_column(int columns, const Work& work) {
    const int first = lane_of_pair() + first_pair() % 2 * kPairLanes;
#pragma unroll 2
    for (int n = 0; n < columns; n += 2 * kPairLanes) {
      work(n + first);
      work(n + (first ^ kPairLanes));
    }
  }

  // The squared lengths of all rows. The whole block calls it, between barriers.
  __device__ void measure() const {
    for (int first = 0; first < count; first += kPairs) {
      const int i = first + first_pair();
      double sum = 0;
      each_column(i < count ? rotation : 0,
                  [&](int c) { sum += rows[i * stride + c] * rows[i * stride + c]; });
      sum = warp_sum<kPairLanes>(sum);
      if (i < count && lane_of_pair() == 0) lengths[i] = sum;
    }
  }
  __device__ double longest() const {
    double most = 0;
    for (int i = 0; i < count; ++i) most = max(most, lengths[i]);
    return most;
  }

  // Makes two rows orthogonal, unless they are already, or one of them is as good as zero. The whole warp calls it; lanes whose
  // pair does not exist do nothing.
  __device__ bool rotate(bool exists, int i, int j, double nothing) const {
    double* const one = rows + i * stride;
    double* const another = rows + j * stride;
    double own = 0, other = 0, both = 0;
    each_column(exists ? rotation : 0, [&](int c) {
      const double a = one[c], b = another[c];
      own += a * a;
      other += b * b;
      both += a * b;
    });
    own = warp_sum<kPairLanes>(own);
    other = warp_sum<kPairLanes>(other);
    both = warp_sum<kPairLanes>(both);
    if (!exists || own <= nothing || other <= nothing || fabs(both) <= kOrthogonal * sqrt(own) * sqrt(other))
      return false;
    const double zeta = (other - own) / (2 * both);
    const double tangent = (zeta < 0 ? -1 : 1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
    const double cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
    each_column(stride, [&](int c) {
      const double a = one[c], b = another[c];
      one[c] = cosine * a - sine * b;
      another[c] = sine * a + cosine * b;
    });
    return true;
  }
};

// The queries that merge: those of every head of the group, or their mean.
template <Storage T>
__device__ void load_queries(const Arguments<T>& p, int64_t g, const Rotated& q) {
  const int heads = p.group_size / q.count;  // of one row
  for (int n = static_cast<int>(threadIdx.x); n < q.count * q.stride; n += kThreads) {
    const int row = n / q.stride, c = n % q.stride;
    q.rows[n] = c == q.rotation + row ? 1 : 0;
    if (c >= q.head_dim) continue;
    double sum = 0;
    for (int i = 0; i < heads; ++i) {
      const int64_t head = g * p.group_size + row * heads + i;
      sum += to_float(p.queries.data[head * p.queries.row_stride + c]);
    }
    const double number = p.scale * (sum / static_cast<double>(heads));
    q.rows[n] = number;
    p.prepared.queries[(g * q.count + row) * q.head_dim + c] = static_cast<float>(number);
  }
}

// Every pair of rows once, in rounds of pairs that have no row in common: a tournament of an even number of players.
__device__ bool sweep(const Rotated& q, double nothing) {
  const int others = q.count - 1 + q.count % 2;  // players but one
  bool turned = false;
  for (int round = 0; round < others; ++round) {
    for (int first = 0; first <= others / 2; first += kPairs) {
      const int pair = first + q.first_pair();
      const int i = pair == 0 ? others : (round + pair) % others, j = (round + others - pair) % others;
      const bool exists = pair <= others / 2 && i < q.count && j < q.count;
      if (q.rotate(exists, min(i, j), max(i, j), nothing)) turned = true;
    }
    __syncthreads();
  }
  return __syncthreads_or(turned ? 1 : 0) != 0;
}

// Writes the pseudo-inverse: the sum of v_i u_i / sigma_i over the rows that stay, where a row is sigma_i v_i and its rotation u_i.
template <Storage T>
__device__ void store_inverse(const Arguments<T>& p, int64_t g, const Rotated& q) {
  const double shortest = p.least * p.least * q.longest();
  for (int n = static_cast<int>(threadIdx.x); n < q.count * q.head_dim; n += kThreads) {
    const int query = n / q.head_dim, c = n % q.head_dim;
    double sum = 0;
    for (int i = 0; i < q.count; ++i) {
      const double* const row = q.rows + i * q.stride;
      const bool stays = q.lengths[i] > 0 && q.lengths[i] >= shortest;
      if (stays) sum += row[q.rotation + query] * row[c] / q.lengths[i];
    }
    p.prepared.inverse[g * q.count * q.head_dim + n] = static_cast<float>(sum);
  }
}

// The pseudo-inverse of one group's queries, by one-sided Jacobi rotations: eight lanes have a pair of rows.
//
//     lanes    0 .. 7                  8 .. 15                 ..    head_dim 128, a group of 4: three rounds are a sweep
//     round 0  rows 0 and 3, columns   rows 1 and 2, columns
//              0 .. 7, 8 .. 15, ..     8 .. 15, 0 .. 7, ..
//     round 1  rows 1 and 3            rows 0 and 2
//     round 2  rows 2 and 3            rows 0 and 1
//
// grid       kv_heads
// block      128
// shared     8 rows (head_dim + rows + up to 31) bytes: 4,640 for four rows of head_dim 128
// registers  40 (sm_90a), 40-44 (sm_80)
// bytes      read: head_dim sizeof(T) for each query head; written: 8 head_dim for each row
// FLOP       6 rows^2 head_dim for each sweep, of which there are about 5, and 3 rows^2 head_dim, in fp64
template <Storage T>
__global__ void __launch_bounds__(kThreads) merge_queries_kernel(Arguments<T> p, Shape shape) {
  SharedMemory memory;
  const Rotated q(memory, shape);
  const int64_t g = blockIdx.x;
  load_queries(p, g, q);
  __syncthreads();
  q.measure();
  __syncthreads();
  // The squared length that counts as zero: rounding turns 0 into a few units in the last place of the largest.
  const double nothing = q.longest() * (DBL_EPSILON * DBL_EPSILON);
  for (int i = 0; i < kMostSweeps && sweep(q, nothing); ++i) {
  }
  q.measure();
  __syncthreads();
  store_inverse(p, g, q);
}

}  // namespace

template <Storage T>
void merge_queries(const KeyRule& rule, DeviceTensor<const T> queries, int64_t kv_heads, double scale,
                   const MergeQueries& prepared, Stream stream) {
  require_layout("queries", queries);
  require_equal("slices of queries", queries.slices, "queries of a head", 1);
  require_range("head_dim", queries.cols, 1, kMostHeadDim);
  require_groups(queries.rows, kv_heads);
  const int64_t group_size = queries.rows / kv_heads, rows = merging_rows(rule.gqa, group_size);
  const double nothing = DBL_EPSILON * static_cast<double>(std::max(rows, queries.cols));
  const Shape shape =
      first_that_fits<Rotated>({Shape{static_cast<int>(rows), static_cast<int>(queries.cols)}});
  launch<merge_queries_kernel<T>>(
      {extent(kv_heads), extent(kThreads), shared_bytes<Rotated>(shape), stream},
      Arguments<T>{queries, scale, std::max(rule.rank, nothing), static_cast<int>(group_size), prepared},
      shape);
}

template void merge_queries(const KeyRule&, DeviceTensor<const float>, int64_t, double, const MergeQueries&,
                            Stream);
template void merge_queries(const KeyRule&, DeviceTensor<const Float16>, int64_t, double, const MergeQueries&,
                            Stream);
template void merge_queries(const KeyRule&, DeviceTensor<const Bfloat16>, int64_t, double,
                            const MergeQueries&, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
