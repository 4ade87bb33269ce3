// OBCache's scores of a prompt by mma.sync: 16-bit types, compute capability 8.0.
//
// A warp has 16 queries of one head in registers (8 for 16 steps), as B operands: the queries, and their
// outputs times G as 16-bit numbers, three of BF16 or two of FP16 for each (output_parts.hpp). Keys and
// values of a split of the tokens pass through one ring of tiles in shared memory, which every warp
// multiplies by what it has, 16 tokens at a time: keys by queries, values by the parts of outputs. Scores are
// formed in registers; those of the warps that share a head are added in shared memory.
//
// In the head of the kernel below, k = kSteps steps of 16 numbers are what head_dim is padded to.
#include <kvbound/cuda/primitives/row_ring.hpp>

#include "change_scores.hpp"
#include "obcache_kernels.hpp"
#include "output_parts.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace obcache_kernels {
namespace {

using window_tiles::binary_scale;
using window_tiles::form_both;
using window_tiles::OutputFragments;
using window_tiles::PartProducts;
using window_tiles::QueryPart;
using window_tiles::sum_over_queries;
using window_tiles::Visible;
using window_tiles::Window;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;

// Tiles of a warp's queries.
template <int kSteps>
constexpr int kOwnTiles = kSteps <= 8 ? 2 : 1;
template <int kSteps>
constexpr int kOwnQueries = kFragmentRows* kOwnTiles<kSteps>;
constexpr int kMostQueries = 2 * kFragmentRows;

// How the queries of a KV head are distributed to blocks and their warps.
struct Partition {
  int group;   // query heads
  int heads;   // of a block
  int all;     // parts of a head; a warp has one
  int parts;   // in a pass
  int pass;    // over all tokens: a launch each
  int shares;  // warps that have the same queries, and share the tokens of a tile
  int64_t split_tokens;

  // Which of the block's parts a warp has, and which of the warps that have it this one is.
  __device__ int unit() const { return warp() % (heads * parts); }
  __device__ int share() const { return warp() / (heads * parts); }
  template <int kQueries>
  __device__ QueryPart part() const {
    const int h = static_cast<int>(blockIdx.x) * heads + unit() / parts, own = pass * parts + unit() % parts;
    return {int64_t{blockIdx.z} * group + h, own * kQueries, h < group && own < all && share() < shares};
  }
};

struct Shape {
  int stages;
  int tile;     // vectors
  int queries;  // vectors in which a warp's queries are loaded
};
struct Shared {
  uint4* ring;        // [stages, tile]: keys, then values
  uint4* queries;     // [kWarps, queries]; with one stage, which is not filled ahead, in its memory
  KnownQuery* known;  // [kWarps, kMostQueries]
  float* partials;    // [2, kWarps, kTileTokens]: scores of a tile by each warp's queries

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : ring(memory.array<uint4>(shape.stages * shape.tile)),
        queries(shape.stages > 1 ? memory.array<uint4>(kWarps * shape.queries) : ring),
        known(memory.array<KnownQuery>(kWarps * kMostQueries)),
        partials(memory.array<float>(2 * kWarps * kTileTokens)) {}

  // Successive tiles of a split have different ones: one is read while the next is written.
  __device__ float* partials_of(int tile) const {
    return partials + tile / kTileTokens % 2 * kWarps * kTileTokens;
  }
};

// The lengths of a tile's values under G, two in each lane. Those of the next tile are loaded while this one
// is scored: a product that waited for them would wait for device memory.
class TileNorms {
 public:
  // rows  of the split's tokens, of which there are `count`
  __device__ TileNorms(const float* rows, int count) : rows_(rows), count_(count) { load(0); }

  // Goes to the tile that begins with token `tile`. The next one is its successor.
  __device__ void next(int tile) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) these_[i] = next_[i];
    load(tile + kTileTokens);
  }

  // Those of the thread's tokens of 16 from token n of the tile on. The whole warp calls it.
  __device__ void of(int n, float (&norm)[2]) const {
    const float own = n < 32 ? these_[0] : these_[1];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      norm[half] = __shfl_sync(kAllLanes, own, n % 32 + PartProducts<1>::token(half));
  }

 private:
  static constexpr int kEach = kTileTokens / 32;
  static_assert(kEach == 2);

  __device__ void load(int tile) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int own = tile + i * 32 + lane();
      next_[i] = own < count_ ? rows_[own] : 0;
    }
  }

  const float* rows_;
  int count_;
  float these_[kEach], next_[kEach];
};

// What a warp scores by: its queries, and what is known of those that a thread has in C operands.
template <Change change, Storage16 T, int kSteps>
struct Scorer {
  static constexpr int kTiles = kOwnTiles<kSteps>;
  const Arguments<T>& p;
  const QueryPart part;
  const Visible visible;
  KnownQuery* const known;  // of the warp's queries
  RowFragments<kSteps, kTiles> queries;
  OutputFragments<T, kSteps, kTiles> outputs;

  __device__ Scorer(const Arguments<T>& arguments, const QueryPart& own, int64_t first, int count,
                    const Shared& shared, const Shape& shape)
      : p(arguments),
        part(own),
        visible(p.window, part, first, count),
        known(shared.known + warp() * kMostQueries) {
    const int64_t size = part.exists ? p.window.size() : 0, stride = p.window.queries.slices;
    const int64_t head = part.exists ? part.head : 0;
    queries.load(TokenRows(p.window.queries, head), part.first, size,
                 shared.queries + warp() * shape.queries);
    const auto columns = static_cast<int>(p.values.cols);
    if constexpr (change != Change::value)
      outputs.load(p.gram_outputs + head * columns, stride * columns, size, part.first, columns);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      if (lane() >= 4) continue;  // other lanes have the same queries
      const float scale = change == Change::value ? 1 : outputs.scales[i];
      known[part.column(i)] = KnownQuery::of<change>(p, part, part.place(i), scale, first, count);
    }
    __syncwarp();
  }

  // Scores 16 tokens of the split.
  //
  // keys    of the first one; its value is `to_value` vectors behind it
  // norms   of the values of the tile that begins with token `tile`; n: the first of the 16 in it
  // scores  of the 16 tokens, in shared memory
  __device__ void score(const uint4* keys, int to_value, float binary, const TileNorms& norms, int tile,
                        int n, float* scores) const {
    PartProducts<kTiles> logits, products;
    if constexpr (change == Change::value) {
      form_products<T>(keys, queries, logits.numbers);
      products = {};
    } else {
      form_both(keys, queries, logits, keys + to_value, outputs, products);
    }
    float norm[2], sums[2];  // here the compiler knows that no lanes of the warp have diverged
    norms.of(n, norm);
    PartScores<change, T, kTiles>{p, part, known}.add_up(logits, products, binary, norm, visible, tile + n,
                                                         sums);
    const float sum = sum_over_queries(sums);
    if (lane() % 4 < 2) scores[logits.token(lane() % 2)] = sum;
  }
};

// Writes a tile's scores of all heads of a block, or adds them to those of earlier
// passes. All threads call it.
//
// partials  [kWarps, kTileTokens]
template <Storage16 T>
__device__ void store_scores(const Arguments<T>& p, const Partition& partition, int64_t first, int count,
                             const float* partials) {
  const int parts = min(partition.parts, partition.all - partition.pass * partition.parts);
  for (int n = static_cast<int>(threadIdx.x); n < partition.heads * kTileTokens; n += kThreads) {
    const int h = static_cast<int>(blockIdx.x) * partition.heads + n / kTileTokens, token = n % kTileTokens;
    if (h >= partition.group || token >= count) continue;
    const float* own = partials + n / kTileTokens * partition.parts * kTileTokens + token;
    float sum = own[0];
    for (int part = 1; part < parts; ++part) sum += own[part * kTileTokens];
    float& score = p.scores[(int64_t{blockIdx.z} * partition.group + h) * p.window.tokens() + first + token];
    score = partition.pass == 0 ? sum : score + sum;
  }
}

template <Change change>
constexpr int kSlices = change == Change::value ? 1 : 2;
template <Change change, int kSteps>
using Ring = RowRing<kSteps, kTileTokens, kSlices<change>>;
static_assert(kWarps * kFragmentRows <= kTileTokens, "a warp's queries are loaded in the memory of a tile");

template <Change change, int kSteps, Storage16 T>
__device__ Ring<change, kSteps> ring_of(const Arguments<T>& p, int64_t first, int count, const Shared& shared,
                                        int stages) {
  const TokenRows keys(p.window.keys, blockIdx.z);
  if constexpr (change == Change::value) {
    return Ring<change, kSteps>({keys}, first, count, 1, shared.ring, stages);
  } else {
    return Ring<change, kSteps>({keys, TokenRows(p.values, blockIdx.z)}, first, count, 1, shared.ring,
                                stages);
  }
}

// The window's scores of a split of the tokens: a warp has up to 16 queries of a head (8 for 16 steps), a
// block those of up to 8 heads. With fewer than 8 such parts, warps share the tokens of a tile; more than 8
// parts of a head take several launches, whose scores are added in device memory.
//
//                                           a split of the tokens, 64 in a tile, 3 tiles in shared memory
//                                           keys                    values
//                                           +----+----+----+----+   +----+----+----+----+
//       head_dim, k steps of 16            | 16 | 16 | 16 | 16 |   | 16 | 16 | 16 | 16 |
//                                           +----+----+----+----+   +----+----+----+----+
//       in registers: queries, outputs G    +----+----+----+----+   +----+----+----+----+
//       warp 0: 16 of one head             |q k |    |    |    |   |oG v|    |    |    |  in registers, by
//       warp 1: its other 16               |    |    |    |    |   |    |    |    |    |  16 x 16; -> the sum
//       warp 2: 16 of the next head        |    |    |    |    |   |    |    |    |    |  over the queries
//       ...                                 +----+----+----+----+   +----+----+----+----+
//
// grid       (ceil(group / heads), splits, kv_heads), heads <= 8, splits so that every
//            multiprocessor has a block
// block      256
// shared     16 (2 k + 1) (64 slices stages + 64) + 6,144 bytes, 2 slices, of `value` 1; 128,000 for
//            head_dim 128 and 3 stages
// registers  steps 4: 175, 8: 252, 16: 254 (sm_90a); 168, 254, 255 (sm_80), of BF16;
//            fewer of FP16 and of `value`
// bytes      read: 4 head_dim for each token and KV head, 2 head_dim of `value`, again for each block along x
//            and each launch, mostly from the L2 cache; 4 for each token and query head; the queries, their
//            outputs and norms for each block; written: 4 query_heads tokens, for each launch
// FLOP       2 query_heads window tokens (16 k) for logits, three times as many for BF16's outputs, twice for
//            FP16's, on tensor cores; 14 and an exponential for each query and token
template <Change change, Storage16 T, int kSteps>
__global__ void __launch_bounds__(kThreads)
    window_change_scores_mma_kernel(Arguments<T> p, float binary, Partition partition, Shape shape) {
  SharedMemory memory;
  const Shared shared(memory, shape);
  const int64_t first = blockIdx.y * partition.split_tokens;
  const auto count = static_cast<int>(min(partition.split_tokens, p.window.tokens() - first));
  auto tiles = ring_of<change, kSteps>(p, first, count, shared, shape.stages);
  const Scorer<change, T, kSteps> scorer(p, partition.part<kOwnQueries<kSteps>>(), first, count, shared,
                                         shape);
  const auto store = [&](int tile) {
    store_scores(p, partition, first + tile, min(kTileTokens, count - tile), shared.partials_of(tile));
  };
  const int own = partition.share() * kRowsAtOnce;  // the first token of a tile that the warp scores
  TileNorms norms(p.norms + scorer.part.head * p.window.tokens() + first, scorer.part.exists ? count : 0);
  for (int tile = 0; tile < count; tile += kTileTokens) {
    const uint4* rows = tiles.next();
    if (tile > 0) store(tile - kTileTokens);
    if (!scorer.part.exists) continue;
    norms.next(tile);
    float* const scores = shared.partials_of(tile) + partition.unit() * kTileTokens;
#pragma unroll 1
    for (int n = own; n < min(kTileTokens, count - tile); n += partition.shares * kRowsAtOnce) {
      scorer.score(rows + n * PaddedRows<kSteps>::kStride, Ring<change, kSteps>::kSlice, binary, norms, tile,
                   n, scores + n);
    }
  }
  __syncthreads();  // all scores of the last tile are there
  store((count - 1) / kTileTokens * kTileTokens);
}

// Blocks have heads as equally as can be, and multiprocessors a block each.
template <int kSteps, Storage16 T>
Partition partition_of(const Window<T>& window) {
  const int64_t all = ceil_division(window.size(), int64_t{kOwnQueries<kSteps>}), group = window.group_size();
  const int64_t passes = ceil_division(all, int64_t{kWarps}), parts = ceil_division(all, passes);
  const int64_t heads = ceil_division(group, ceil_division(group, std::min(group, kWarps / parts)));
  const int64_t shares = std::min<int64_t>(kWarps / (heads * parts), kTileTokens / kRowsAtOnce);
  const int64_t slices = ceil_division(group, heads) * window.keys.slices;
  const int64_t splits = std::max<int64_t>(device().multiprocessors / slices, 1);
  const int64_t tokens = round_up(ceil_division(window.tokens(), splits), kTileTokens);
  return {static_cast<int>(group),
          static_cast<int>(heads),
          static_cast<int>(all),
          static_cast<int>(parts),
          0,
          static_cast<int>(shares),
          tokens};
}

// Up to three tiles of shared memory; where it is short, fewer. Results are the same bits.
template <Change change, int kSteps>
Shape shape_that_fits() {
  const auto with = [](int stages) {
    return Shape{stages, Ring<change, kSteps>::kTile, kFragmentRows * PaddedRows<kSteps>::kStride};
  };
  return first_that_fits<Shared>({with(kMostRingStages), with(2), with(1)});
}

}  // namespace

template <Storage16 T>
void launch_mma(Change change, const Arguments<T>& arguments, Stream stream) {
  const Window<T>& window = arguments.window;
  obcache_terms::for_change(change, [&]<Change of>() {
    with_few_row_steps(window.keys.cols, [&](auto steps) {
      Partition partition = partition_of<steps>(window);
      const Shape shape = shape_that_fits<of, steps>();
      for (; partition.pass * partition.parts < partition.all; ++partition.pass) {
        launch<window_change_scores_mma_kernel<of, T, steps>>(
            {extent(ceil_division(window.group_size(), int64_t{partition.heads}),
                    ceil_division(window.tokens(), partition.split_tokens), window.keys.slices),
             dim3(kThreads), shared_bytes<Shared>(shape), stream},
            arguments, binary_scale(window), partition, shape);
      }
    });
  });
}
template void launch_mma(Change, const Arguments<Float16>&, Stream);
template void launch_mma(Change, const Arguments<Bfloat16>&, Stream);

}  // namespace obcache_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
