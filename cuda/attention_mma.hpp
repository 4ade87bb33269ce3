// Decode attention to the splits of a cache by mma.sync: what the kernels of 16-bit types have in common,
// which bring tiles of keys and values to shared memory each in its own way (attention_mma.cu,
// attention_tma.cu).
//
// A block has one split of a KV head's entries and up to 16 queries of the heads that share the KV head. The
// code calls every query a head, as in a decode step each head has one. The split's keys, then its values
// come to shared memory by tiles of 64 tokens, of which every warp has 16, as the rows or the depth of the
// tensor cores' tiles; the queries are their columns. A block forms all of its logits before its first
// weight, so that partial sums are rescaled only once: where the splits are joined.
//
// Tensor cores form sums of 8 products, which are added in single precision outside them: sums of 16 would
// take half as many instructions, but memory limits the kernel, and the error bounds are half as large.
// Weights are multiplied as sums of numbers of the values' type (WeightParts), so that they lose no more
// than by single precision.
#pragma once

#include <algorithm>
#include <cmath>

#include <kvbound/cuda/primitives/async_copy.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>

#include "attention_splits.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {
namespace attention_mma {

inline constexpr int kWarps = kTileTokens / 16;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kTile = 16;  // tokens and numbers of a tensor core's tile
inline constexpr int kHeads = 8;  // query heads of one
inline constexpr int kMostHeadTiles = 2;

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

// Tiles: CopiedTiles or StreamedTiles, a split's tiles of keys, then of values:
//
//     Memory         what lies in shared memory: stages, [stages, tile] of rows of kVectors; later kHeads
//                    heads' sums, [kWarps, kHeads, kSumRow]
//     begin()        starts to bring the first tiles
//     next(n)        waits for the n-th tile and returns it: zeros behind head_dim, and in a tile of values
//                    behind the last token, as far as a warp multiplies
//     leave(n)       the warp reads the n-th tile no more
//     vector(t, r, s, h)  where the vector 2 s + h of row r of a tile lies, h = 0, 1
template <class Tiles, Storage16 T, int kSteps>
struct Shared {
  using VisibleTokens = typename SplitArguments<T>::VisibleTokens;

  typename Tiles::Memory tiles;
  uint4* queries;          // [heads] of rows with an odd number of vectors
  float* logits;           // [heads, logit_row]: z = logit + ln votes
  float* largest;          // [kWarps, kMostHeadTiles * kHeads]: the largest z of a warp's tokens
  float* sums;             // likewise: the sum of their weights
  int* rows;               // likewise: the row of the first token with the largest z of the split
  VisibleTokens* visible;  // [kMostHeadTiles * kHeads]

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory, shape.stages),
        queries(memory.array<uint4>(shape.heads * tile_row_vectors(kVectors<kSteps>))),
        logits(memory.array<float>(shape.heads * shape.logit_row())),
        largest(memory.array<float>(kWarps * kMostHeadTiles * kHeads)),
        sums(memory.array<float>(kWarps * kMostHeadTiles * kHeads)),
        rows(memory.array<int>(kWarps * kMostHeadTiles * kHeads)),
        visible(memory.array<VisibleTokens>(kMostHeadTiles * kHeads)) {}
};

// One block's split as one of its threads sees it, and the steps of the kernel. Where a lane has two
// of a tile's heads, for logits, they are 2 (lane % 4) and the next one; where it has one, for
// weights, it is lane / 4.
template <class Tiles, Storage16 T, int kSteps, int kHeadTiles>
struct Work {
  const SplitArguments<T>& p;
  const Shared<Tiles, T, kSteps>& shared;
  const Shape& shape;
  Tiles tiles;
  int g;           // KV head
  int first;       // token
  int count;       // tokens, at least 1
  int first_head;  // of the block, among the queries of all heads
  int heads;       // of the block that exist

  __device__ Work(const SplitArguments<T>& arguments, const Shared<Tiles, T, kSteps>& memory,
                  const Shape& of_block, const Split& split, const Tiles& of_split)
      : p(arguments),
        shared(memory),
        shape(of_block),
        tiles(of_split),
        g(split.kv_head),
        first(split.first),
        count(split.tokens) {
    const int head = static_cast<int>(blockIdx.y) * kHeadTiles * kHeads;
    first_head = g * p.group_queries() + head;
    heads = min(kHeadTiles * kHeads, p.group_queries() - head);
  }

  // The warp's 16 tokens of a tile: the first one, counted in the split, and whether there is any.
  __device__ int warp_token(int tile) const { return tile * kTileTokens + warp() * kTile; }
  __device__ bool has_tokens(int tile) const { return warp_token(tile) < count; }

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
      const bool inside = column < (static_cast<int>(p.queries.cols) + 7) / 8;
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

  // The vector of the warp's tokens of a tile whose address this lane gives to ldmatrix.
  __device__ const uint4* own_vector(const uint4* tile, int token, int step, int half) const {
    return tiles.vector(tile, warp() * kTile + token, step, half);
  }
};

// The block's queries as B operands. Columns of heads that do not exist are those of the
// last one, and are not used.
template <int kSteps, int kHeadTiles>
struct Queries {
  uint32_t fragments[kHeadTiles][kSteps][2];

  template <class Tiles, Storage16 T>
  __device__ explicit Queries(const Work<Tiles, T, kSteps, kHeadTiles>& work) {
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
template <class Tiles, Storage16 T, int kSteps, int kHeadTiles>
struct Logits {
  const Work<Tiles, T, kSteps, kHeadTiles>& work;
  const Queries<kSteps, kHeadTiles> queries;
  float largest[kHeadTiles][2];

  __device__ explicit Logits(const Work<Tiles, T, kSteps, kHeadTiles>& of_block)
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
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t key[4];
      ldmatrix_x4(key, work.own_vector(tile, lane() % 16, step, lane() / 16));
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
    const float votes = has_votes ? p.cache.log_votes[work.g * p.capacity + position] : 0;
#pragma unroll
    for (int i = 0; i < 2 * kHeadTiles; ++i) {
      if (head(i) >= work.heads) continue;
      const float number = p.scale * products[i / 2][part + i % 2];
      const auto visible = work.shared.visible[head(i)];
      const bool sees = token < visible.tokens;
      const float z = sees && token != visible.hidden ? number + votes : kNothing;
      if (p.result.logits && sees) {
        p.result.logits[(work.first_head + head(i)) * p.capacity + position] = number;
      }
      *work.logit(head(i), token) = z;
      largest[i / 2][i % 2] = fmaxf(largest[i / 2][i % 2], z);
    }
  }
};

// The weights exp(z - largest) of the lane's heads, their sums, and the block's sums of weights times values.
template <class Tiles, Storage16 T, int kSteps, int kHeadTiles>
struct Outputs {
  const Work<Tiles, T, kSteps, kHeadTiles>& work;
  float largest[kHeadTiles];          // z of the split's tokens
  int rows[kHeadTiles];               // the first row of the lane's tokens with that z
  float weights[kHeadTiles];          // the sum of the lane's
  float sums[kSteps][kHeadTiles][4];  // [dim, head]: 16 numbers of an output by 8 heads

  __device__ explicit Outputs(const Work<Tiles, T, kSteps, kHeadTiles>& of_block)
      : work(of_block), weights{}, sums{} {
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
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t value[4];
      ldmatrix_x4_trans(value, work.own_vector(tile, lane() % 8 + lane() / 16 * 8, step, lane() / 8 % 2));
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
    float* to = reinterpret_cast<float*>(work.shared.tiles.stages) + warp() * kHeads * kSumRow<kSteps>;
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
    const float* from = reinterpret_cast<const float*>(work.shared.tiles.stages) + place;
    const auto of = [from](int w) { return *reinterpret_cast<const float4*>(from + w * kNext); };
    const float4 a = of(0), b = of(1), c = of(2), d = of(3);
    constexpr float kUnscale = 1 / WeightParts<T>::kScale;
    return make_float4(((a.x + b.x) + (c.x + d.x)) * kUnscale, ((a.y + b.y) + (c.y + d.y)) * kUnscale,
                       ((a.z + b.z) + (c.z + d.z)) * kUnscale, ((a.w + b.w) + (c.w + d.w)) * kUnscale);
  }
};

// Attends to a split.
template <class Tiles, Storage16 T, int kSteps, int kHeadTiles>
__device__ void attend(const Work<Tiles, T, kSteps, kHeadTiles>& work) {
  const Tiles& tiles = work.tiles;
  tiles.begin();
  work.load_queries();
  work.write_sights();
  async_wait<0>();
  __syncthreads();
  {
    Logits<Tiles, T, kSteps, kHeadTiles> logits(work);
#pragma unroll 1
    for (int n = 0; n < tiles.of_keys; ++n) {
      logits.add(tiles.next(n), n);
      tiles.leave(n);
    }
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
  Outputs<Tiles, T, kSteps, kHeadTiles> outputs(work);
#pragma unroll 1
  for (int n = 0; n < tiles.of_keys; ++n) {
    outputs.add(tiles.next(tiles.of_keys + n), n);
    tiles.leave(tiles.of_keys + n);
  }
  outputs.write();
}

}  // namespace attention_mma
}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
