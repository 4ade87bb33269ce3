#include <algorithm>
#include <cfloat>
#include <cmath>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "keep_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kDotLanes = 8;                 // have a product of two rows together
constexpr int kDots = kThreads / kDotLanes;  // of a block at a time
constexpr int kLaneColumns = 4;              // whose loads are in flight together
constexpr int kMostSweeps = 40;  // a few are enough; rows that cancel to rounding noise would go on
// The cosine of rows that are not turned any more
// (reference/bounds/merge_cluster_errors.md, "Joint corrections").
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

// The rotation that makes two rows orthogonal: (cosine a - sine b, sine a + cosine b) for a
// of one and b of the other.
struct Rotation {
  double cosine = 1, sine = 0;

  __device__ void turn(double& a, double& b) const {
    const double one = a, other = b;
    a = cosine * one - sine * other;
    b = sine * one + cosine * other;
  }
};

// One group's queries Q, and vectors Q Q^T vectors^T, which rotations make diagonal. In shared memory. An odd
// number of rows has one of zeros behind it, so that every row has a partner.
struct Rotated {
  int count, head_dim, players;
  int columns;      // head_dim, rounded up to a multiple of 8
  int stride;       // of queries: 8 behind a multiple of 16, so that successive rows lie in different banks
  double* queries;  // [count, stride]: zeros behind head_dim
  double* gram;     // [players, players]: Q Q^T, in the end the squared singular values
  double* vectors;  // [players, players]
  double* inverse;  // [count, count]: the pseudo-inverse of Q Q^T
  double* reciprocals;  // [count]: of squared singular values; 0 of those that are dropped
  Rotation* rotations;  // [players / 2]

  __host__ __device__ Rotated(SharedMemory& memory, const Shape& shape)
      : count(shape.rows),
        head_dim(shape.head_dim),
        players(count + count % 2),
        columns(static_cast<int>(round_up(head_dim, kDotLanes))),
        stride(static_cast<int>(round_up(head_dim, 2 * kDotLanes)) + kDotLanes),
        queries(memory.array<double>(int64_t{count} * stride)),
        gram(memory.array<double>(int64_t{players} * players)),
        vectors(memory.array<double>(int64_t{players} * players)),
        inverse(memory.array<double>(int64_t{count} * count)),
        reciprocals(memory.array<double>(count)),
        rotations(memory.array<Rotation>(players / 2)) {}

  __device__ double& product(int i, int j) const { return gram[i * players + j]; }
  __device__ double longest() const {
    double most = 0;
    for (int i = 0; i < count; ++i) most = max(most, product(i, i));
    return most;
  }

  // Forms Q Q^T; no row is turned yet. The whole block calls it.
  __device__ void multiply() const {
    for (int first = 0; first < players * players; first += kDots) {
      const int n = first + static_cast<int>(threadIdx.x) / kDotLanes, i = n / players, j = n % players;
      double sum = 0;
#pragma unroll 4
      for (int c = lane() % kDotLanes; c < (i < count && j < count ? columns : 0); c += kDotLanes) {
        sum += queries[i * stride + c] * queries[j * stride + c];
      }
      sum = warp_sum<kDotLanes>(sum);
      if (lane() % kDotLanes > 0 || n >= players * players) continue;
      gram[n] = sum;
      vectors[n] = i == j ? 1 : 0;
    }
  }
};

// Rounds of pairs that have no row in common, so that a sweep has every pair once: a tournament of
// an even number of players.
struct Pair {
  int i, j;

  __device__ Pair(const Rotated& q, int round, int pair) {
    const int others = q.players - 1;
    const auto wrapped = [&](int n) { return n >= others ? n - others : n; };
    i = pair == 0 ? others : wrapped(round + pair);
    j = wrapped(round + others - pair);
  }
};

// Finds the rotation of two rows; false if they are orthogonal already, or one of them is as good as
// zero. Its angle is rounded to single precision, which costs less than the next sweep's squares
// gain; its length is not.
//
// longest  the largest squared length of the rows as they were
// unit     1 / longest
__device__ bool find_rotation(const Rotated& q, const Pair& pair, double longest, double unit,
                              Rotation& found) {
  const double own = q.product(pair.i, pair.i), other = q.product(pair.j, pair.j);
  const double both = q.product(pair.i, pair.j);
  const double nothing = longest * DBL_EPSILON;
  found = Rotation();
  if (!(own > nothing && other > nothing && both * both > kOrthogonal * kOrthogonal * own * other))
    return false;
  const float zeta = static_cast<float>((other - own) * unit) / static_cast<float>(2 * both * unit);
  const float tangent = (zeta < 0 ? -1.0f : 1.0f) / (fabsf(zeta) + sqrtf(1 + zeta * zeta));
  const double square = 1 + double{tangent} * tangent;
  double cosine = 1 / sqrtf(static_cast<float>(square));
#pragma unroll
  for (int step = 0; step < 2; ++step) cosine *= 1.5 - 0.5 * square * (cosine * cosine);  // Newton
  found = {cosine, cosine * tangent};
  return true;
}

// Turns the rows and columns of all pairs of a round: two by two products, and the same of the
// vectors, of a thread at a time.
__device__ void turn_rows(const Rotated& q, int round) {
  const int pairs = q.players / 2;
  for (int own = warp(); own < pairs; own += kWarps) {
    const Pair rows(q, round, own);
    const Rotation of_rows = q.rotations[own];
    for (int other = lane(); other < pairs; other += 32) {
      const Pair columns(q, round, other);
      const Rotation of_columns = q.rotations[other];
      for (const int c : {columns.i, columns.j}) {
        of_rows.turn(q.product(rows.i, c), q.product(rows.j, c));
        of_rows.turn(q.vectors[rows.i * q.players + c], q.vectors[rows.j * q.players + c]);
      }
      for (const int r : {rows.i, rows.j}) of_columns.turn(q.product(r, columns.i), q.product(r, columns.j));
    }
  }
}

// Every pair of rows once; false if none was turned. The whole block calls it.
__device__ bool sweep(const Rotated& q, double longest, double unit) {
  bool turned = false;
  for (int round = 0; round < q.players - 1; ++round) {
    bool turns = false;
    for (int n = static_cast<int>(threadIdx.x); n < q.players / 2; n += kThreads) {
      if (find_rotation(q, Pair(q, round, n), longest, unit, q.rotations[n])) turns = true;
    }
    if (__syncthreads_or(turns ? 1 : 0) == 0) continue;
    turn_rows(q, round);
    turned = true;
    __syncthreads();
  }
  return turned;
}

// The queries that merge: those of every head of the group, or their mean. A warp has a row, four
// columns of each lane at once.
template <Storage T>
__device__ void load_queries(const Arguments<T>& p, int64_t g, const Rotated& q) {
  const int heads = p.group_size / q.count;  // of one row
  const double factor = p.scale / heads;
  for (int row = warp(); row < q.count; row += kWarps) {
    const T* const first = p.queries.data + (g * p.group_size + row * heads) * p.queries.row_stride;
    for (int column = lane(); column < q.columns; column += 32 * kLaneColumns) {
      double sums[kLaneColumns] = {};
#pragma unroll 2
      for (int i = 0; i < heads; ++i) {
#pragma unroll
        for (int n = 0; n < kLaneColumns; ++n) {
          const int c = column + 32 * n;
          sums[n] += c < q.head_dim ? to_float(first[i * p.queries.row_stride + c]) : 0;
        }
      }
#pragma unroll
      for (int n = 0; n < kLaneColumns; ++n) {
        const int c = column + 32 * n;
        if (c < q.columns) q.queries[row * q.stride + c] = factor * sums[n];
      }
    }
  }
}

// Inverts Q Q^T: the sum of u_i u_i^T / sigma_i^2 over the singular values that stay.
__device__ void invert(const Rotated& q, double least) {
  const double shortest = least * least * q.longest();
  for (int i = static_cast<int>(threadIdx.x); i < q.count; i += kThreads) {
    const double square = q.product(i, i);
    const bool stays = square > 0 && square >= shortest;
    q.reciprocals[i] = stays ? 1 / square : 0;
  }
  __syncthreads();
  for (int n = static_cast<int>(threadIdx.x); n < q.count * q.count; n += kThreads) {
    const double* const one = q.vectors + n / q.count;
    const double* const another = q.vectors + n % q.count;
    double sum = 0;
    for (int i = 0; i < q.count; ++i) sum += one[i * q.players] * q.reciprocals[i] * another[i * q.players];
    q.inverse[n] = sum;
  }
}

// Writes the queries, and their pseudo-inverse (Q Q^T)^+ Q.
template <Storage T>
__device__ void store(const Arguments<T>& p, int64_t g, const Rotated& q) {
  for (int n = static_cast<int>(threadIdx.x); n < q.count * q.head_dim; n += kThreads) {
    const int query = n / q.head_dim, c = n % q.head_dim;
    double sum = 0;
    for (int i = 0; i < q.count; ++i) sum += q.inverse[query * q.count + i] * q.queries[i * q.stride + c];
    const int64_t place = g * q.count * q.head_dim + n;
    p.prepared.queries[place] = static_cast<float>(q.queries[query * q.stride + c]);
    p.prepared.inverse[place] = static_cast<float>(sum);
  }
}

// The pseudo-inverse of one group's queries, by Jacobi's rotations of Q Q^T: a thread finds the rotation of a
// pair of rows, and the threads of a warp turn it. Rotations of the rows themselves would be exact for
// singular values far below the largest as well, but each has products of rows to wait for;
// sqrt(head_dim 2^-52) is the smallest that is distinguished from zero here.
//
//     round 0  rows 3 and 0    1 and 2         a group of 4: three rounds are a sweep
//     round 1  rows 3 and 1    2 and 0
//     round 2  rows 3 and 2    0 and 1
//
// grid       kv_heads
// block      128
// shared     8 rows (head_dim + 3 rows + up to 32) bytes: 4,800 for four rows of head_dim 128
// registers  48-54 (sm_90a), 48 (sm_80)
// bytes      read: head_dim sizeof(T) for each query head; written: 8 head_dim for each row
// FLOP       4 rows^2 head_dim, and 9 rows^3 for each sweep, of which there are about 5, in fp64
template <Storage T>
__global__ void __launch_bounds__(kThreads) merge_queries_kernel(Arguments<T> p, Shape shape) {
  begin_dependent_launch();
  SharedMemory memory;
  const Rotated q(memory, shape);
  const int64_t g = blockIdx.x;
  load_queries(p, g, q);
  __syncthreads();
  q.multiply();
  __syncthreads();
  const double longest = q.longest(), unit = longest > 0 ? 1 / longest : 0;
  for (int i = 0; i < kMostSweeps && sweep(q, longest, unit); ++i) {
  }
  invert(q, p.least);
  __syncthreads();
  store(p, g, q);
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
  // What rounding leaves of a singular value of 0, as a share of the largest one.
  const double nothing = std::sqrt(DBL_EPSILON * static_cast<double>(std::max(rows, queries.cols)));
  const Shape shape =
      first_that_fits<Rotated>({Shape{static_cast<int>(rows), static_cast<int>(queries.cols)}});
  launch_dependent<merge_queries_kernel<T>>(
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
