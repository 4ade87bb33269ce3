// SnapKV's and H2O's scores by mma.sync: 16-bit types, compute capability 8.0.
//
// A warp has 32 queries of one head in registers, as the B operand, 16 for 16 steps; a block's warps have
// those of as many query heads of one KV head, or of further parts of larger windows. The keys of a split of
// the tokens pass through a ring of tiles in shared memory, which every warp multiplies by its queries, 16
// tokens at a time (primitives/row_fragments.hpp). Exponents are to base 2, so that scale and log2 e are one
// factor. In the heads of the kernels below, k = kSteps steps of 16 numbers are what head_dim is padded to, a
// part has 32 queries (16 for 16 steps), and parts = ceil(window / queries of a part).
#include <kvbound/cuda/primitives/row_fragments.hpp>
#include <kvbound/cuda/primitives/row_ring.hpp>
#include <kvbound/cuda/primitives/tile_variants.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "running_sums.hpp"
#include "snap_kv_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace snap_kv_kernels {
namespace {

using window_tiles::binary_scale;
using window_tiles::kPartQueries;
using window_tiles::kPartTiles;
using window_tiles::kRereadTokens;
using window_tiles::load_offsets;
using window_tiles::PartProducts;
using window_tiles::QueryPart;
using window_tiles::RunningSum;
using window_tiles::RunningSums;
using window_tiles::sum_of_weights;
using window_tiles::Visible;
using window_tiles::Window;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr WindowTile kUsed = kWindowTiles[0];
// The ring of tiles of keys.
struct Shape {
  int stages;
  int tile;     // vectors
  int queries;  // vectors in which a warp's queries are loaded
};
struct Shared {
  uint4* ring;     // [stages, tile]
  uint4* queries;  // [kWarps, queries]

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : ring(memory.array<uint4>(shape.stages * shape.tile)),
        queries(memory.array<uint4>(kWarps * shape.queries)) {}

  __device__ uint4* of_warp(const Shape& shape) const { return queries + warp() * shape.queries; }
};

// The largest logit and the sum of exponentials over one split of the tokens, for 32 queries a warp.
//
//                                     a split of up to 704 tokens, 64 in a tile, 3 tiles in shared memory
//                                     +----+----+----+----+
//       head_dim, k steps of 16      | 16 | 16 | 16 | 16 |  keys
//                                     +----+----+----+----+
//       queries, in registers         +----+----+----+----+
//       warp 0: 32 of one head        |    |    |    |    |  products, in registers, 32 x 16 at a time
//       warp 1: 32 of the next one    |    |    |    |    |  -> each query's largest logit and its sum
//       ...                           +----+----+----+----+
//
// grid       (ceil(group parts / 4), ceil(tokens / split_tokens), kv_heads), group = query_heads / kv_heads
// block      128
// shared     16 (2 k + 1) (64 stages + 32) bytes; 60,928 for head_dim 128 and 3 stages
// registers  steps 4: 108, 5: 121, 6: 140, 8: 160, 12: 220, 16: 164 (sm_90a); 110, 118,
//            137, 158, 214, 158 (sm_80)
// bytes      read: 2 head_dim for each token and KV head, again for each block along x; the queries for each
//            split; written: 8 for each query and split
// FLOP       2 query_heads (parts of a window, filled up) tokens (16 k) on tensor cores, an
//            exponential and 5 for each logit
template <Storage16 T, int kSteps, int kTokens, int kResident>
__global__ void __launch_bounds__(kThreads, kResident)
    window_log_sum_exp_mma_kernel(Window<T> window, float scale, Splits splits, SplitPartials partials,
                                  Shape shape) {
  constexpr int kTiles = kPartTiles<kSteps>, kQueries = kPartQueries<kSteps>;
  SharedMemory memory;
  const Shared shared(memory, shape);
  const int64_t first = blockIdx.y * splits.tokens;
  const auto count = static_cast<int>(min(splits.tokens, window.tokens() - first));
  RowRing<kSteps, kTokens> tiles({TokenRows(window.keys, blockIdx.z)}, first, count, 1, shared.ring,
                                 shape.stages);
  const int parts = static_cast<int>(ceil_division(window.size(), kQueries));
  const int n = static_cast<int>(blockIdx.x * kWarps) + warp();
  const QueryPart part{blockIdx.z * window.group_size() + n / parts, n % parts * kQueries,
                       n / parts < window.group_size()};
  RowFragments<kSteps, kPartTiles<kSteps>> queries;
  queries.load(TokenRows(window.queries, part.exists ? part.head : 0), part.first,
               part.exists ? window.size() : 0, shared.of_warp(shape));
  const Visible visible(window, part, first, count);
  RunningSums<kTiles> running;
  for (int tile = 0; tile < count; tile += kTokens) {
    const uint4* keys = tiles.next();
    if (!part.exists) continue;
#pragma unroll 1
    for (int token = tile; token < min(tile + kTokens, count); token += kRowsAtOnce) {
      PartProducts<kTiles> logits;
      form_products<T>(keys, queries, logits.numbers);
      keys += kRowsAtOnce * PaddedRows<kSteps>::kStride;
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) logits.numbers[i / 4][i % 4] *= scale;
      if (token + kRowsAtOnce > visible.all) logits.mask(visible, token);
      running.add(logits);
    }
  }
  running.join_lanes();
  const int place = part.place(lane() / 4);
  if (!part.exists || lane() / 4 >= running.kOwn || place >= window.size()) return;
  const RunningSum own = running.of_lane();
  partials.write(blockIdx.y, part.head * window.size() + place, own.most(), own.sum);
}

// The window's mean or summed attention to a split of the tokens, for a query head each warp. Larger
// windows take a part of 32 queries after the other, whose sums are added in device memory by the
// threads that wrote them.
//
//                                     a split of up to 704 tokens, 64 in a tile, 3 tiles in shared memory
//                                     +----+----+----+----+
//       head_dim, k steps of 16      | 16 | 16 | 16 | 16 |  keys
//                                     +----+----+----+----+
//       queries, in registers         +----+----+----+----+
//       warp 0: 32 of one head        |    |    |    |    |  products, in registers, 32 x 16 at a time
//       warp 1: 32 of the next one    |    |    |    |    |  -> each token's sum over the warp's queries
//       ...                           +----+----+----+----+
//
// grid       (ceil(group / 4), ceil(tokens / split_tokens), kv_heads), group = query_heads / kv_heads
// block      128
// shared     16 (2 k + 1) (kTokens stages + 32) bytes; 60,928 for head_dim 128, 64
//            tokens in a tile and 3 stages
// registers  steps 4: 125, 5: 138, 6: 151, 8: 162, 12: 228, 16: 182 (sm_90a); 120, 134,
//            149, 162, 222, 178 (sm_80)
// bytes      read: 2 head_dim for each token and KV head, again for each block along x and each part, the
//            latter mostly from the L2 cache; the queries and their log-sum-exp for each split; written: 4
//            query_heads tokens, for each part
// FLOP       2 query_heads (parts of a window, filled up) tokens (16 k) on tensor cores, an
//            exponential and 3 for each logit
template <Storage16 T, int kSteps, int kTokens, int kResident>
__global__ void __launch_bounds__(kThreads, kResident)
    window_attention_mma_kernel(Window<T> window, float scale, const float* log_sum_exp, float share,
                                float* weights, int64_t split_tokens, Shape shape) {
  constexpr int kTiles = kPartTiles<kSteps>, kQueries = kPartQueries<kSteps>;
  SharedMemory memory;
  const Shared shared(memory, shape);
  const int64_t first = blockIdx.y * split_tokens;
  const auto count = static_cast<int>(min(split_tokens, window.tokens() - first));
  const int parts = static_cast<int>(ceil_division(window.size(), kQueries));
  RowRing<kSteps, kTokens> tiles({TokenRows(window.keys, blockIdx.z)}, first, count, parts, shared.ring,
                                 shape.stages);
  const int h = static_cast<int>(blockIdx.x * kWarps) + warp();
  QueryPart part{blockIdx.z * window.group_size() + h, 0, h < window.group_size()};
  float* const to = weights + part.head * window.tokens() + first;
  for (int p = 0; p < parts; ++p, part.first += kQueries) {
    RowFragments<kSteps, kPartTiles<kSteps>> queries;
    queries.load(TokenRows(window.queries, part.exists ? part.head : 0), part.first,
                 part.exists ? window.size() : 0, shared.of_warp(shape));
    float offsets[2 * kTiles];
    load_offsets(window, part, log_sum_exp, offsets);
    const Visible visible(window, part, first, count);
    for (int token = 0; token < count;) {
      const uint4* keys = tiles.next();
      const int end = min(token + kTokens, count);
      if (!part.exists) token = end;
#pragma unroll 1
      for (; token < end; token += kRowsAtOnce) {
        PartProducts<kTiles> exponents;
        form_products<T>(keys, queries, exponents.numbers);
        keys += kRowsAtOnce * PaddedRows<kSteps>::kStride;
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
          exponents.of(0, i) = fmaf(exponents.of(0, i), scale, offsets[i]);
          exponents.of(1, i) = fmaf(exponents.of(1, i), scale, offsets[i]);
        }
        if (token + kRowsAtOnce > visible.all) exponents.mask(visible, token);
        const float sum = sum_of_weights(exponents);
        const int own = token + PartProducts<kTiles>::token(lane() % 2);
        if (lane() % 4 < 2 && own < count)
          to[own] = (p == 0 ? sum : to[own] + sum) * (p + 1 == parts ? share : 1);
      }
    }
  }
}

// Blocks that a multiprocessor must have registers for: each has 16 kSteps for the queries of a warp.
template <int kSteps>
constexpr int resident(int of_most) {
  return kSteps <= 8 ? of_most : 2;
}

// Up to three tiles of shared memory; where it is short, fewer. Results are the same bits.
template <int kSteps, int kTokens>
Shape shape_that_fits() {
  constexpr int kStride = PaddedRows<kSteps>::kStride;
  const auto with = [](int stages) { return Shape{stages, kTokens * kStride, kFragmentRows * kStride}; };
  return first_that_fits<Shared>({with(kMostRingStages), with(2), with(1)});
}

template <int kSteps, int kTile, Storage16 T>
void launch_attention(const Window<T>& window, const float* log_sum_exp, WindowReduction reduction,
                      float* weights, Stream stream) {
  constexpr WindowTile kTileShape = kWindowTiles[kTile];
  const Shape shape = shape_that_fits<kSteps, kTileShape.tokens>();
  const Splits splits(window.tokens());
  const int64_t tokens =
      window.size() > kPartQueries<kSteps> ? std::min(splits.tokens, kRereadTokens) : splits.tokens;
  launch<window_attention_mma_kernel<T, kSteps, kTileShape.tokens, resident<kSteps>(kTileShape.blocks)>>(
      {extent(ceil_division(window.group_size(), kWarps), ceil_division(window.tokens(), tokens),
              window.keys.slices),
       dim3(kThreads), shared_bytes<Shared>(shape), stream},
      window, binary_scale(window), log_sum_exp, 1 / divisor_of(reduction, window.size()), weights, tokens,
      shape);
}

}  // namespace

template <Storage16 T>
void launch_splits_mma(const Window<T>& window, const Splits& splits, const SplitPartials& partials,
                       Stream stream) {
  with_row_steps(window.keys.cols, [&](auto steps) {
    const int64_t parts = window.group_size() * ceil_division(window.size(), kPartQueries<steps>);
    const Shape shape = shape_that_fits<steps, kUsed.tokens>();
    launch<window_log_sum_exp_mma_kernel<T, steps, kUsed.tokens, resident<steps>(kUsed.blocks)>>(
        {extent(ceil_division(parts, kWarps), splits.count, window.keys.slices), dim3(kThreads),
         shared_bytes<Shared>(shape), stream},
        window, binary_scale(window), splits, partials, shape);
  });
}
template void launch_splits_mma(const Window<Float16>&, const Splits&, const SplitPartials&, Stream);
template void launch_splits_mma(const Window<Bfloat16>&, const Splits&, const SplitPartials&, Stream);

template <Storage16 T>
void launch_attention_mma(const Window<T>& window, const float* log_sum_exp, WindowReduction reduction,
                          float* weights, Stream stream) {
  with_row_steps(window.keys.cols, [&](auto steps) {
    launch_attention<steps, 0>(window, log_sum_exp, reduction, weights, stream);
  });
}
template void launch_attention_mma(const Window<Float16>&, const float*, WindowReduction, float*, Stream);
template void launch_attention_mma(const Window<Bfloat16>&, const float*, WindowReduction, float*, Stream);

void window_attention_by(int tile, const WindowView<Bfloat16>& view, const float* log_sum_exp,
                         WindowReduction reduction, float* weights, Stream stream) {
  require_window(view);
  constexpr int kSteps = 8;
  require_range("head_dim", view.keys.cols, 1, kSteps * kStepNumbers);
  with_variant<kWindowTileCount>(tile, [&](auto number) {
    launch_attention<kSteps, number>(Window<Bfloat16>(view), log_sum_exp, reduction, weights, stream);
  });
}

// A thread adds the two tokens that it has of 16, then those of all sixteens; a tree adds eight lanes.
int64_t mma_split_depth(int64_t tokens) { return 1 + ceil_division(tokens, kRowsAtOnce) - 1 + 3; }

// At every 16 tokens but the first, and where lanes are combined.
int64_t mma_split_rescalings(int64_t tokens) { return ceil_division(tokens, kRowsAtOnce); }

}  // namespace snap_kv_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
