// Decode attention to the splits of a cache by mma.sync: 16-bit types, any head_dim, compute capability 8.0.
//
// A block has one split of a KV head's entries and up to 16 queries of the heads that share the KV head. The
// code calls every query a head, as in a decode step each head has one. The split's keys, then its values are
// copied to shared memory by tiles of 64 tokens, of which every warp has 16, as the rows or the depth of the
// tensor cores' tiles; the queries are their columns. A block forms all of its logits before its first
// weight, so that partial sums are rescaled only once: where the splits are joined.
//
// Tensor cores form sums of 8 products, which are added in single precision outside them: sums of 16 would
// take half as many instructions, but memory limits the kernel, and the error bounds are half as large.
// Weights are multiplied as sums of numbers of the values' type (WeightParts), so that they lose no more
// than by single precision.
#include <algorithm>
#include <cmath>

#include <kvbound/cuda/primitives/async_copy.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/row_fragments.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>

#include "attention_splits.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {
namespace {

constexpr int kWarps = kTileTokens / 16;
constexpr int kThreads = kWarps * 32;
constexpr int kMostStages = 2;
constexpr int kTile = 16;  // tokens and numbers of a tensor core's tile
constexpr int kHeads = 8;  // query heads of one
constexpr int kMostHeadTiles = 2;

// kSteps: the tiles of 16 that head_dim is padded to with zeros.
template <int kSteps>
inline constexpr int kVectors = kSteps* kTile / 8;  // of a padded row
template <int kSteps>
inline constexpr int kSumRow =
    kSteps* kTile + 4;  // numbers from one head's sums to the next, in different banks

// A weight w <= 1 as the sum of 16-bit numbers, which tensor cores multiply exactly.
//
//     BF16   w         three parts of 8 bits: all of a single-precision number's 24
//     FP16   2^15 w    two parts of 11 bits: off by 2^-23 of it, or by 2^-25, half its smallest number
template <Storage16 T>
struct WeightParts {
  static constexpr int kCount = std::is_same_v<T, Bfloat16> ? 3 : 2;
  static constexpr float kScale = std::is_same_v<T, Bfloat16> ? 1 : 0x1p15F;
  static constexpr double kRounding = std::is_same_v<T, Bfloat16> ? 0 : 0x1p-23;
  static constexpr double kFloor = std::is_same_v<T, Bfloat16> ? 0 : 0x1p-40;

  // The errors of a sum of 8 weights times values, as a share of its absolute terms: of tensor cores that add
  // the parts' products one behind the other, and of the parts (reference/bounds/error_bounds.md, "Output").
  static constexpr double kSums = kShortChainedTensorSums * (1 + 0x1p-6) + kRounding;

  // The parts of two weights, the first one in the low halves; the largest part last.
  uint32_t pairs[kCount];

  __device__ WeightParts(float first, float second) {
    first *= kScale;
    second *= kScale;
#pragma unroll
    for (int i = kCount - 1; i >= 0; --i) {
      pairs[i] = to_storage_pair<T>(first, second);
      first -= to_float(T{static_cast<uint16_t>(pairs[i])});
      second -= to_float(T{static_cast<uint16_t>(pairs[i] >> 16)});
    }
  }
};

struct Shape {
  int stages;        // tiles at a time
  int heads;         // of a block, at most
  int split_tokens;  // at most, for any entries that fit the cache

  // Logits from one head to the next, so that the eight heads of a tensor core's tile
  // begin in different banks.
  __host__ __device__ int logit_row() const { return split_tokens + 8; }
};

template <Storage16 T, int kSteps>
struct Shared {
  using VisibleTokens = typename SplitArguments<T>::VisibleTokens;

  uint4* tiles;    // [stages, tile] of rows of kVectors; later kHeads heads' sums: [kWarps, kHeads, kSumRow]
  uint4* queries;  // [heads] of rows like those of a tile
  float* logits;   // [heads, logit_row]: z = logit + ln votes
  float* largest;  // [kWarps, kMostHeadTiles * kHeads]: the largest z of a warp's tokens
  float* sums;     // likewise: the sum of their weights
  int* rows;       // likewise: the row of the first token with the largest z of the split
  VisibleTokens* visible;  // [kMostHeadTiles * kHeads]

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stages * tile_vectors(kVectors<kSteps>))),
        queries(memory.array<uint4>(shape.heads * tile_row_vectors(kVectors<kSteps>))),
        logits(memory.array<float>(shape.heads * shape.logit_row())),
        largest(memory.array<float>(kWarps * kMostHeadTiles * kHeads)),
        sums(memory.array<float>(kWarps * kMostHeadTiles * kHeads)),
        rows(memory.array<int>(kWarps * kMostHeadTiles * kHeads)),
        visible(memory.array<VisibleTokens>(kMostHeadTiles * kHeads)) {
    static_assert(kWarps * kHeads * kSumRow<kSteps> * sizeof(float) <=
                  tile_vectors(kVectors<kSteps>) * sizeof(uint4));
  }
};

// One block's split as one of its threads sees it, and the steps of the kernel. Where a lane has two
// of a tile's heads, for logits, they are 2 (lane % 4) and the next one; where it has one, for
// weights, it is lane / 4.
template <Storage16 T, int kSteps, int kHeadTiles>
struct Work {
  const SplitArguments<T>& p;
  const Shared<T, kSteps>& shared;
  const Shape& shape;
  TokenRows keys, values;
  int g;           // KV head
  int first;       // token
  int count;       // tokens, at least 1
  int tiles;       // of keys
  int first_head;  // of the block, among the queries of all heads
  int heads;       // of the block that exist

  __device__ Work(const SplitArguments<T>& arguments, const Shared<T, kSteps>& memory, const Shape& of_block,
                  const Split& split)
      : p(arguments),
        shared(memory),
        shape(of_block),
        keys(TokenRows::by_shifts(arguments.cache.keys, static_cast<unsigned>(split.kv_head))),
        values(TokenRows::by_shifts(arguments.cache.values, static_cast<unsigned>(split.kv_head))),
        g(split.kv_head),
        first(split.first),
        count(split.tokens),
        tiles(tiles_of(count)) {
    const int head = static_cast<int>(blockIdx.y) * kHeadTiles * kHeads;
    first_head = g * p.group_queries() + head;
    heads = min(kHeadTiles * kHeads, p.group_queries() - head);
  }

  // The warp's 16 tokens of a tile: the first one, counted in the split, and whether there is any.
  __device__ int warp_token(int tile) const { return tile * kTileTokens + warp() * kTile; }
  __device__ bool has_tokens(int tile) const { return warp_token(tile) < count; }

  __device__ uint4* stage(int n) const {
    return shared.tiles + n % shape.stages * tile_vectors(kVectors<kSteps>);
  }

  // The place of a token's logit: even tokens' pairs stay together, and eight successive tokens of a lane's
  // heads, or pairs of tokens of four successive heads, lie in different banks.
  __device__ float* logit(int head, int token) const {
    return shared.logits + head * shape.logit_row() + (token ^ (head & 4) << 1);
  }

  // Starts to copy the queries, with zeros behind head_dim.
  __device__ void load_queries() const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < heads * kVectors<kSteps>; i += kThreads) {
      const int head = i / kVectors<kSteps>, column = i % kVectors<kSteps>;
      const bool inside = column < keys.vectors;
      const auto* from = reinterpret_cast<const uint4*>(p.query(first_head + head));
      async_copy16(shared.queries + head * tile_row_vectors(kVectors<kSteps>) + column,
                   inside ? from + column : from, inside ? 16 : 0);
    }
    async_commit();
  }

  // Writes what the heads see of the split. A barrier follows before it is read: that of the first tile.
  __device__ void write_sights() const {
    const auto own = static_cast<int>(threadIdx.x);
    if (own < heads) shared.visible[own] = p.visible_tokens({g, first, count}, first_head + own);
  }

  // Starts to copy the n-th tile: tiles of keys come first, then tiles of values.
  __device__ void load(int n) const {
    const bool of_keys = n < tiles;
    load(of_keys ? keys : values, of_keys ? n : n - tiles, stage(n));
  }

  // Starts to copy a tile of rows. Zeros behind the last token, as far as a warp multiplies, and behind
  // head_dim.
  __device__ void load(TokenRows rows, int tile, uint4* to) const {
    constexpr int kColumns = power_of_two_above(kVectors<kSteps>, 64);
    constexpr int kRowsAtOnce = kThreads / kColumns;
    const int begin = tile * kTileTokens;
    const auto column = static_cast<int>(threadIdx.x % kColumns),
               row = static_cast<int>(threadIdx.x / kColumns);
    if (column < kVectors<kSteps>) {
      const uint4* from = rows.data +
                          static_cast<unsigned>(first + begin + row) * static_cast<uint64_t>(rows.stride) +
                          column;
      to += row * tile_row_vectors(kVectors<kSteps>) + column;
      const int wanted = min(kTileTokens, (count - begin + kTile - 1) & -kTile);
#pragma unroll 1  // unrolled, its addresses would take too many registers
      for (int r = row; r < wanted; r += kRowsAtOnce) {
        const bool inside = begin + r < count && column < rows.vectors;
        async_copy16(to, inside ? from : rows.data, inside ? 16 : 0);
        from += kRowsAtOnce * rows.stride;
        to += kRowsAtOnce * tile_row_vectors(kVectors<kSteps>);
      }
    }
    async_commit();
  }

  // Waits for the n-th tile and returns it. With two stages it then starts the copy of the next tile, into
  // the stage that no thread reads any more.
  __device__ const uint4* next_tile(int n) const {
    if (n > 0) {  // the first one has landed with the queries
      if (shape.stages == 1) {
        __syncthreads();  // no thread reads the previous tile any more
        load(n);
      }
      async_wait<0>();
      __syncthreads();
    }
    if (shape.stages > 1 && n + 1 < 2 * tiles) load(n + 1);
    return stage(n);
  }

  // The row of 16 numbers of the warp's tokens of a tile whose address this lane gives to ldmatrix.
  __device__ const uint4* own_row(const uint4* tile, int token, int vector) const {
    return tile + (warp() * kTile + token) * tile_row_vectors(kVectors<kSteps>) + vector;
  }
};

// The block's queries as B operands. Columns of heads that do not exist are those of the
// last one, and are not used.
template <Storage16 T, int kSteps, int kHeadTiles>
struct Queries {
  uint32_t fragments[kHeadTiles][kSteps][2];

  __device__ explicit Queries(const Work<T, kSteps, kHeadTiles>& work) {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      const int head = min(t * kHeads + lane() / 4, work.heads - 1);
      const uint4* row = work.shared.queries + head * tile_row_vectors(kVectors<kSteps>);
      const auto* pairs = reinterpret_cast<const uint32_t*>(row) + lane() % 4;
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) fragments[t][i / 2][i % 2] = pairs[i * 4];
    }
  }
};

// Logits of the block's tokens, and the largest ones of the lane's heads.
template <Storage16 T, int kSteps, int kHeadTiles>
struct Logits {
  const Work<T, kSteps, kHeadTiles>& work;
  const Queries<T, kSteps, kHeadTiles> queries;
  float largest[kHeadTiles][2];

  __device__ explicit Logits(const Work<T, kSteps, kHeadTiles>& of_block)
      : work(of_block), queries(of_block) {
#pragma unroll
    for (int i = 0; i < 2 * kHeadTiles; ++i) {
      largest[i / 2][i % 2] = kNothing;
    }
  }

  // The lane's i-th head.
  __device__ static int head(int i) { return i / 2 * kHeads + lane() % 4 * 2 + i % 2; }

  // Forms the logits of the warp's tokens of the n-th tile.
  __device__ void add(const uint4* tile, int n) {
    if (!work.has_tokens(n)) return;
    float products[kHeadTiles][4] = {};
    const uint4* row = work.own_row(tile, lane() % 16, lane() / 16);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t key[4];
      ldmatrix_x4(key, row + step * 2);
#pragma unroll
      for (int t = 0; t < kHeadTiles; ++t) {
        float low[4] = {}, high[4] = {};
        mma_m16n8k8<T>(low, key[0], key[1], queries.fragments[t][step][0]);
        mma_m16n8k8<T>(high, key[2], key[3], queries.fragments[t][step][1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) products[t][i] += low[i] + high[i];
      }
    }
    finish(work.warp_token(n) + lane() / 4, products, 0);
    finish(work.warp_token(n) + lane() / 4 + 8, products, 2);
  }

 private:
  // products[t][part], [part + 1]  of the token, which is counted in the split, and of the lane's heads
  __device__ void finish(int token, const float (&products)[kHeadTiles][4], int part) {
    const SplitArguments<T>& p = work.p;
    const int64_t position = int64_t{work.first} + token;
    const bool has_votes = p.cache.log_votes && token < work.count;
    const float votes = has_votes ? p.cache.log_votes[work.g * p.capacity() + position] : 0;
#pragma unroll
    for (int i = 0; i < 2 * kHeadTiles; ++i) {
      if (head(i) >= work.heads) continue;
      const float number = p.scale * products[i / 2][part + i % 2];
      const auto visible = work.shared.visible[head(i)];
      const bool sees = token < visible.tokens;
      const float z = sees && token != visible.hidden ? number + votes : kNothing;
      if (p.result.logits && sees) {
        p.result.logits[(work.first_head + head(i)) * p.capacity() + position] = number;
      }
      *work.logit(head(i), token) = z;
      largest[i / 2][i % 2] = fmaxf(largest[i / 2][i % 2], z);
    }
  }
};

// The weights exp(z - largest) of the lane's heads, their sums, and the block's sums of weights times values.
template <Storage16 T, int kSteps, int kHeadTiles>
struct Outputs {
  const Work<T, kSteps, kHeadTiles>& work;
  float largest[kHeadTiles];          // z of the split's tokens
  int rows[kHeadTiles];               // the first row of the lane's tokens with that z
  float weights[kHeadTiles];          // the sum of the lane's
  float sums[kSteps][kHeadTiles][4];  // [dim, head]: 16 numbers of an output by 8 heads

  __device__ Outputs(const Work<T, kSteps, kHeadTiles>& of_block) : work(of_block), weights{}, sums{} {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      const float* by_warp = work.shared.largest + head(t);
      largest[t] = by_warp[0];
      for (int w = 1; w < kWarps; ++w) largest[t] = fmaxf(largest[t], by_warp[w * kMostHeadTiles * kHeads]);
      rows[t] = INT32_MAX;
    }
  }

  __device__ static int head(int t) { return t * kHeads + lane() / 4; }

  // Adds the warp's tokens of the n-th tile.
  __device__ void add(const uint4* tile, int n) {
    if (!work.has_tokens(n)) return;
    uint32_t parts[kHeadTiles][WeightParts<T>::kCount][2];
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) add_weights(t, work.warp_token(n) + lane() % 4 * 2, parts[t]);
    const uint4* row = work.own_row(tile, lane() % 8 + lane() / 16 * 8, lane() / 8 % 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t value[4];
      ldmatrix_x4_trans(value, row + step * 2);
#pragma unroll
      for (int t = 0; t < kHeadTiles; ++t) {
        float low[4] = {}, high[4] = {};
#pragma unroll
        for (int i = 0; i < WeightParts<T>::kCount; ++i) {
          mma_m16n8k8<T>(low, value[0], value[1], parts[t][i][0]);
          mma_m16n8k8<T>(high, value[2], value[3], parts[t][i][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[step][t][i] += low[i] + high[i];
      }
    }
  }

  // Joins the warps' sums and writes the split's partial results.
  __device__ void write() {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      weights[t] = warp_sum<4>(weights[t]);
      rows[t] = warp_min<4>(rows[t]);
      if (lane() % 4 == 0) {
        const int place = warp() * kMostHeadTiles * kHeads + head(t);
        work.shared.sums[place] = weights[t];
        work.shared.rows[place] = rows[t];
      }
      __syncthreads();  // no thread reads the tiles, or the previous heads' sums, any more
      share(t);
      __syncthreads();
      join(t);
    }
  }

 private:
  // The weights of the lane's head for the tokens token, + 1, + 8 and + 9, as B operands, and their sum.
  __device__ void add_weights(int t, int token, uint32_t (&parts)[WeightParts<T>::kCount][2]) {
    float weight[4] = {};
    if (head(t) < work.heads) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float2 z = *reinterpret_cast<const float2*>(work.logit(head(t), token + i * 4));
        weight[i] = weight_of(z.x, largest[t]);
        weight[i + 1] = weight_of(z.y, largest[t]);
        const int row = work.first + token + i * 4;
        if (z.y == largest[t]) rows[t] = min(rows[t], row + 1);
        if (z.x == largest[t]) rows[t] = min(rows[t], row);
      }
    }
    weights[t] += (weight[0] + weight[1]) + (weight[2] + weight[3]);
    const WeightParts<T> low(weight[0], weight[1]), high(weight[2], weight[3]);
#pragma unroll
    for (int i = 0; i < WeightParts<T>::kCount; ++i) {
      parts[i][0] = low.pairs[i];
      parts[i][1] = high.pairs[i];
    }
  }

  __device__ static float weight_of(float z, float most) { return z == kNothing ? 0 : expf(z - most); }

  // Writes the warp's sums of one tile's heads to shared memory.
  __device__ void share(int t) const {
    float* to = reinterpret_cast<float*>(work.shared.tiles) + warp() * kHeads * kSumRow<kSteps>;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int of_tile = lane() % 4 * 2 + i % 2, dim = step * kTile + lane() / 4 + i / 2 * 8;
        if (t * kHeads + of_tile < work.heads) to[of_tile * kSumRow<kSteps> + dim] = sums[step][t][i];
      }
    }
  }

  // Adds up the warps' sums of one tile's heads: four numbers of a head at a time.
  __device__ void join(int t) const {
    constexpr int kFours = kSteps * kTile / 4;
    const Partials& partials = work.p.partials;
    const int here = min(kHeads, work.heads - t * kHeads);
    const int first = work.first_head - work.g * partials.group_queries + t * kHeads;  // of the group
    const int64_t place = partials.own_split() * int64_t{partials.group_queries} + first;
    for (int i = static_cast<int>(threadIdx.x); i < here * kFours; i += kThreads) {
      const int of_tile = i / kFours, dim = i % kFours * 4;
      if (dim >= partials.row) continue;
      *reinterpret_cast<float4*>(partials.outputs + (place + of_tile) * partials.row + dim) =
          joined(of_tile * kSumRow<kSteps> + dim);
    }
    const auto own = static_cast<int>(threadIdx.x);
    if (own >= here) return;
    const float *of_warps = work.shared.sums + t * kHeads + own,
                *most = work.shared.largest + t * kHeads + own;
    const int* first_rows = work.shared.rows + t * kHeads + own;
    constexpr int kNext = kMostHeadTiles * kHeads;
    const SplitWeights of_split{
        .largest = fmaxf(fmaxf(most[0], most[kNext]), fmaxf(most[2 * kNext], most[3 * kNext])),
        .sum = (of_warps[0] + of_warps[kNext]) + (of_warps[2 * kNext] + of_warps[3 * kNext]),
        .largest_row =
            min(min(first_rows[0], first_rows[kNext]), min(first_rows[2 * kNext], first_rows[3 * kNext]))};
    partials.weights_of(first + own, partials.own_split()) = of_split;
  }

  // The sum over the warps, of four numbers that begin at this place.
  __device__ float4 joined(int place) const {
    constexpr int kNext = kHeads * kSumRow<kSteps>;
    const float* from = reinterpret_cast<const float*>(work.shared.tiles) + place;
    const auto of = [from](int w) { return *reinterpret_cast<const float4*>(from + w * kNext); };
    const float4 a = of(0), b = of(1), c = of(2), d = of(3);
    constexpr float kUnscale = 1 / WeightParts<T>::kScale;
    return make_float4(((a.x + b.x) + (c.x + d.x)) * kUnscale, ((a.y + b.y) + (c.y + d.y)) * kUnscale,
                       ((a.z + b.z) + (c.z + d.z)) * kUnscale, ((a.w + b.w) + (c.w + d.w)) * kUnscale);
  }
};

// Attends to a split.
template <Storage16 T, int kSteps, int kHeadTiles>
__device__ void attend(const Work<T, kSteps, kHeadTiles>& work) {
  work.load(work.keys, 0, work.stage(0));
  work.load_queries();
  work.write_sights();
  async_wait<0>();
  __syncthreads();
  {
    Logits<T, kSteps, kHeadTiles> logits(work);
#pragma unroll 1
    for (int n = 0; n < work.tiles; ++n) logits.add(work.next_tile(n), n);
#pragma unroll
    for (int i = 0; i < 2 * kHeadTiles; ++i) {
      float most = logits.largest[i / 2][i % 2];
      for (int distance = 16; distance >= 4; distance /= 2) {
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
      }
      if (lane() < 4) work.shared.largest[warp() * kMostHeadTiles * kHeads + logits.head(i)] = most;
    }
  }
  __syncthreads();
  Outputs<T, kSteps, kHeadTiles> outputs(work);
#pragma unroll 1
  for (int n = 0; n < work.tiles; ++n) outputs.add(work.next_tile(work.tiles + n), n);
  outputs.write();
}

// Logits, weights and weighted values of one split of a KV head's entries.
//
//                        64 tokens
//       keys      | warp 0 | 1 | 2 | 3 |   [16 tokens x head_dim] [head_dim x 8 heads]   ->  z: shared memory
//       values    | warp 0 | 1 | 2 | 3 |   [head_dim x 16 tokens] [16 tokens x 8 heads]  ->  sums: registers
//
//       all tiles of keys, then all of values; then the four warps' sums are added
//
// grid       (splits of a segment's full cache, at most max(528, kv_heads capacity / 512) + kv_heads with its
//            kv_heads; ceil(group / (8 kHeadTiles)); segments); group = queries / kv_heads; blocks behind the
//            last split end at once, and those without anything to do
// block      128
// shared     (1,024 stages + 16 heads) (2 kSteps + 1) + 4 heads (split_tokens + 8) + 896 bytes;
//            heads = min(group, 8 kHeadTiles); for head_dim 128, 4 heads and splits of 512 tokens: 45,120
// registers  at most, sm_90a and sm_80: kHeadTiles 1: 72, 72, 75, 104, 103, 138 (kSteps 4, 5, 6, 8, 12, 16);
//            kHeadTiles 2: 104, 139, 139, 137, 177 (up to 12)
// bytes      read: 4 head_dim a token, its keys and values, once for each block along y; queries and log
//            votes; written: 4 row + 16 for each query and split, 4 for each logit if wanted; the segment's
//            entries in every block, and the queries' dominant rows where they are left out
// FLOP       256 kSteps (1 + parts) a token for each tile of 8 heads, in tensor cores; an exponential
//            for each query and entry
template <Storage16 T, int kSteps, int kHeadTiles>
__global__ void __launch_bounds__(kThreads) attention_mma_kernel(SplitArguments<T> p, Shape shape) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared<T, kSteps> shared(memory, shape);
  const Split split = p.split();
  if (split.tokens == 0) return;
  const Work<T, kSteps, kHeadTiles> work(p, shared, shape, split);
  if (p.has_work(split, work.first_head, work.heads)) attend(work);
}

// Where shared memory is short a block has one tile at a time, which does not change the order of a sum.
template <int kSteps, int kHeadTiles, Storage16 T>
void launch_with(const SplitArguments<T>& arguments, Stream stream) {
  const auto with = [&](int stages) {
    return Shape{stages, std::min(arguments.group_queries(), kHeadTiles * kHeads), arguments.most_tokens()};
  };
  const auto shape = first_that_fits<Shared<T, kSteps>>({with(kMostStages), with(1)});
  launch_dependent<attention_mma_kernel<T, kSteps, kHeadTiles>>(
      {extent(arguments.blocks(), ceil_division(arguments.group_queries(), kHeadTiles * kHeads),
              arguments.segments()),
       dim3(kThreads), shared_bytes<Shared<T, kSteps>>(shape), stream},
      arguments, shape);
}

// Two tiles of heads with more than 192 numbers do not fit into a thread's registers.
template <int kSteps, Storage16 T>
void launch_with(const SplitArguments<T>& arguments, Stream stream) {
  if constexpr (kSteps <= 12) {
    if (arguments.group_queries() > kHeads) return launch_with<kSteps, 2>(arguments, stream);
  }
  launch_with<kSteps, 1>(arguments, stream);
}

}  // namespace

template <Storage T>
void attend_to_splits(const SplitArguments<T>& arguments, Stream stream) {
  with_row_steps(arguments.cache.keys.cols, [&](auto steps) { launch_with<steps>(arguments, stream); });
}
template void attend_to_splits(const SplitArguments<Float16>&, Stream);
template void attend_to_splits(const SplitArguments<Bfloat16>&, Stream);

// A lane adds up four weights for each tile, or two sums of 8 tokens; then two lanes' pairs,
// then two pairs of warps.
template <Storage T>
KernelArithmetic split_arithmetic(int64_t tokens, int64_t head_dim) {
  return {.precision = Precision::fp32,
          .accumulation_depth = 2 + ceil_division(tokens, kTileTokens) + 2 + 2,
          .product_depth = ceil_division(head_dim, kTile) + 1,
          .tensor_sums = kShortTensorSums,
          .tensor_weighted_sums = WeightParts<T>::kSums,
          .weights_floor = WeightParts<T>::kFloor};
}
template KernelArithmetic split_arithmetic<Float16>(int64_t, int64_t);
template KernelArithmetic split_arithmetic<Bfloat16>(int64_t, int64_t);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
