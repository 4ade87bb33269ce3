// OBCache's scores of a cache by a decode step's queries.
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/paged_rows.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/window/obcache_terms.hpp>

#include "obcache.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace obcache_terms;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kHeads = 4;  // query heads of a group, for which a row is multiplied at a time
constexpr int kProducts = kRowsInFlight * kHeads;  // of a lane

template <Storage T>
struct Arguments {
  CacheView<T> cache;
  AttendedQueries queries;
  MeasuredQueries measured;
  const float* norms;
  int64_t kv_heads, group_size, capacity;
  float* scores;
};

// The rows of one block, and its layout of shared memory.
template <Storage T, int kDims>
struct Tile : RowLanes<T, kDims> {
  using Row = RowLanes<T, kDims>;
  static constexpr int kRows = kWarps * Row::kWarpRows;

  // An output's numbers lie as lanes read them: four of each lane, then the next four of each, 16 numbers
  // further, so that successive columns lie in different banks.
  static constexpr int kQuads = Row::kNumbers / 4;  // of a lane
  static constexpr int kQuadStride = 4 * Row::kLanes + 16;
  __device__ static int place_of(int column) {
    const int vector = column / Row::kVectorNumbers, in_vector = column % Row::kVectorNumbers;
    const int quad = vector / Row::kLanes * (Row::kVectorNumbers / 4) + in_vector / 4;
    return quad * kQuadStride + vector % Row::kLanes * 4 + column % 4;
  }

  // Products of neighbouring heads lie in different banks.
  static constexpr int kProductStride = kRows + 8;
  // The row of the block that is the calling lane's r-th one.
  __device__ static int row(int r) { return warp() * Row::kWarpRows + r * Row::kRowsAtOnce + Row::row(); }
};

template <Storage T, int kDims>
struct Shared {
  float* outputs;   // [kHeads, kQuads, kQuadStride]: o G
  float* products;  // [kHeads, kProductStride]: v . (o G)

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : outputs(memory.array<float>(kHeads * Tile<T, kDims>::kQuads * Tile<T, kDims>::kQuadStride)),
        products(memory.array<float>(kHeads * Tile<T, kDims>::kProductStride)) {}
};

// Loads the lane's part of its rows; zeros for rows that the block does not have. Those of a warp lie in one
// page.
template <Storage T, int kDims>
__device__ void load_rows(const CacheView<T>& cache, int64_t g, int64_t first, int count,
                          LoadedRow<T, kDims> (&rows)[kRowsInFlight]) {
  using Of = Tile<T, kDims>;
  const DeviceTensor<const T>& values = cache.values;
  const int own = warp() * Of::kWarpRows;
  const RowPlace place = own < count ? place_of(cache.pages, g, first + own) : RowPlace{};
  const T* const lanes = numbers_at(values, place) + Of::column(0);
#pragma unroll
  for (int r = 0; r < kRowsInFlight; ++r) {
    rows[r].load(lanes, Of::row(r) < count ? Of::row(r) - own : -1, static_cast<uint32_t>(values.row_stride),
                 static_cast<int>(values.cols));
  }
}

// Copies the outputs times G of `heads` successive query heads; zeros behind head_dim and for further heads.
template <Storage T, int kDims>
__device__ void load_outputs(const float* gram_outputs, int heads, int head_dim,
                             const Shared<T, kDims>& shared) {
  using Of = Tile<T, kDims>;
  for (int n = static_cast<int>(threadIdx.x); n < kHeads * kDims; n += kThreads) {
    const int h = n / kDims, c = n % kDims;
    shared.outputs[h * Of::kQuads * Of::kQuadStride + Of::place_of(c)] =
        h < heads && c < head_dim ? gram_outputs[h * head_dim + c] : 0.0f;
  }
}

// Writes v . (o G) of the warp's rows for kHeads query heads.
template <Storage T, int kDims>
__device__ void multiply(const LoadedRow<T, kDims> (&rows)[kRowsInFlight], const Shared<T, kDims>& shared) {
  using Of = Tile<T, kDims>;
  float sums[kProducts] = {};  // [kRowsInFlight, kHeads]
#pragma unroll
  for (int quad = 0; quad < Of::kQuads; ++quad) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float4 output = *reinterpret_cast<const float4*>(
          shared.outputs + (h * Of::kQuads + quad) * Of::kQuadStride + Of::lane_in_row() * 4);
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        float& sum = sums[r * kHeads + h];
        sum = fmaf(rows[r].number(4 * quad), output.x, sum);
        sum = fmaf(rows[r].number(4 * quad + 1), output.y, sum);
        sum = fmaf(rows[r].number(4 * quad + 2), output.z, sum);
        sum = fmaf(rows[r].number(4 * quad + 3), output.w, sum);
      }
    }
  }
  sum_numbers<Of::kLanes>(sums);
  constexpr int kOfLane = std::max(1, kProducts / Of::kLanes), kSharing = std::max(1, Of::kLanes / kProducts);
  if (Of::lane_in_row() % kSharing != 0) return;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int n = Of::lane_in_row() / kSharing * kOfLane + i;
    shared.products[n % kHeads * Of::kProductStride + Of::row(n / kHeads)] = sums[i];
  }
}

// The score of one entry by one query head.
template <Change change, Storage T>
__device__ float score(const Arguments<T>& p, int64_t g, int64_t head, int64_t row, float along) {
  if (leaves_out_dominant(change) && p.measured.dominant[head] == row)
    return p.measured.dominant_scores[head];
  const int64_t place = head * p.capacity + row;
  const float z = p.queries.logits[place];
  const float votes = p.cache.log_votes ? p.cache.log_votes[g * p.capacity + row] : 0;
  const float output_norm = change == Change::value ? 0 : p.measured.output_norms[head];
  return score_of(table_2<change>(z + votes - p.queries.log_sum_exp[head], z), p.norms[place], along,
                  output_norm);
}

// The scores of a block of a KV head's rows for all query heads of its group. Every row is read once, four of
// them in flight, and multiplied by the outputs of four query heads at a time; the products are exchanged, so
// that neighbouring threads have the scores of neighbouring entries.
//
//     lanes  0 .. 15       16 .. 31        head_dim 128 of 16-bit numbers: 8 rows of a warp, 64 of a block
//            row 0         row 1
//            row 2         row 3
//            row 4         row 5
//            row 6         row 7
//
// grid       (ceil(capacity / rows of a block), kv_heads): 64 rows for 16-bit types and head_dim 128
// block      256
// shared     16 quads (4 lanes + 16) + 16 (rows + 8) bytes, with `quads` of four numbers of each lane: 3,712
//            for 16-bit types and head_dim 128
// registers  28-80 (sm_90a), 32-103 (sm_80)
// bytes      read: a padded row of values for each entry, 4 head_dim of an output for each query head and
//            block, from the L2 cache, 8 for each query head and entry; written: 4 for each
// FLOP       2 head_dim + 10 and an exponential for each query head and entry
template <Change change, int kDims, Storage T>
__global__ void __launch_bounds__(kThreads) step_change_scores_kernel(Arguments<T> p) {
  begin_dependent_launch();
  using Of = Tile<T, kDims>;
  SharedMemory memory;
  const Shared<T, kDims> shared(memory);
  const int64_t g = row_of_block(), first = static_cast<int64_t>(blockIdx.x) * Of::kRows;
  if (g >= p.kv_heads) return;  // the whole block
  const auto count = static_cast<int>(min(int64_t{Of::kRows}, p.cache.entries[g] - first));
  if (count <= 0) return;  // likewise
  LoadedRow<T, kDims> rows[kRowsInFlight];
  load_rows(p.cache, g, first, change == Change::value ? 0 : count, rows);
  const auto head_dim = static_cast<int>(p.cache.values.cols);
  for (int64_t h = 0; h < p.group_size; h += kHeads) {
    const auto heads = static_cast<int>(min(int64_t{kHeads}, p.group_size - h));
    const int64_t first_head = g * p.group_size + h;
    if constexpr (change != Change::value) {
      load_outputs(p.measured.gram_outputs + first_head * head_dim, heads, head_dim, shared);
      __syncthreads();
      multiply(rows, shared);
      __syncthreads();
    }
    for (int n = static_cast<int>(threadIdx.x); n < heads * Of::kRows; n += kThreads) {
      const int of_heads = n / Of::kRows, row = n % Of::kRows;
      if (row >= count) continue;
      const int64_t head = first_head + of_heads;
      const float along = change == Change::value ? 0 : shared.products[of_heads * Of::kProductStride + row];
      p.scores[head * p.capacity + first + row] = score<change>(p, g, head, first + row, along);
    }
  }
}

template <Change change, int kDims, Storage T>
void launch_step(const Arguments<T>& arguments, Stream stream) {
  launch_dependent<step_change_scores_kernel<change, kDims, T>>(
      {extent_of_rows(ceil_division(arguments.capacity, Tile<T, kDims>::kRows), arguments.kv_heads),
       extent(kThreads), shared_bytes<Shared<T, kDims>>(), stream},
      arguments);
}

}  // namespace

template <Storage T>
void step_change_scores(Change change, const CacheView<T>& cache, const AttendedQueries& queries,
                        const MeasuredQueries& measured, const float* norms, int64_t query_heads,
                        float* scores, Stream stream) {
  require_layout("values", cache.values);
  require_pages(cache);
  require_groups(query_heads, cache.kv_heads());
  require_range("head_dim", cache.values.cols, 1, kMostHeadDim);
  if (cache.capacity() == 0) return;
  const int64_t kv_heads = cache.kv_heads();
  const Arguments<T> arguments{
      cache, queries, measured, norms, kv_heads, query_heads / kv_heads, cache.capacity(), scores};
  for_change(change, [&]<Change of>() {
    if constexpr (of == Change::value) {
      launch_step<of, 64>(arguments, stream);  // which reads no rows
    } else {
      by_dims(cache.values.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
        launch_step<of, kDims>(arguments, stream);
      });
    }
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
