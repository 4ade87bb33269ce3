// Decode attention to the splits of an fp32 cache: a block has one split of a KV head's entries and
// up to 16 queries of the heads that share the KV head. The code calls every query a head, as in a
// decode step each head has one.
//
// The split's keys, then its values are copied to shared memory by tiles of 64 tokens. A block
// forms all of its logits before its first weight, so that partial sums are rescaled only once:
// where the splits are joined.
#include <algorithm>
#include <cmath>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>

#include "attention_splits.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {
namespace {

// A team is the 128 threads that work on the same up to eight query heads, two threads for each token of a
// tile. A block has one team or two, which share its tiles.
constexpr int kTeam = 2 * kTileTokens;
constexpr int kTeamWarps = kTeam / 32;
constexpr int kMostTeams = 2;
// Blocks of a multiprocessor that registers leave room for.
template <int kHeads>
constexpr int kBlocks = kHeads == 1   ? 5
                        : kHeads == 2 ? 4
                        : kHeads <= 4 ? 3
                                      : 2;
constexpr int kMostTeamHeads = 8;

constexpr int kMostStages = 2;
constexpr int kLaneNumbers = 8;  // columns of the output that a lane sums

// A product of a query and a key is summed in parts of 32 numbers, each in four partial sums: the
// accumulation depth is small and the error bounds are tight.
constexpr int kPartNumbers = 32;
constexpr int kPartSums = 4;
constexpr int kVectorNumbers = kVector<float>;
constexpr int kPartVectors = kPartNumbers / kVectorNumbers;

using Arguments = SplitArguments<float>;

// kHeads: the query heads of one team. Their weights for a token are adjacent, for loads of 16 bytes.
template <int kHeads>
inline constexpr int kWeightRow = kHeads <= 2 ? kHeads : (kHeads + 3) / 4 * 4;
// The query heads for which each of a token's two threads forms logits.
template <int kHeads>
inline constexpr int kThreadHeads = (kHeads + 1) / 2;

struct Shape {
  int teams;
  int stages;        // tiles at a time
  int heads;         // of a team, kHeads
  int weight_row;    // kWeightRow
  int vectors;       // of a row of keys or values
  int row;           // numbers in them
  int split_tokens;  // at most, for any entries that fit the cache

  // Vectors in all tiles; at least as many as the sums take that half of each team's warps
  // later write in their place.
  __host__ __device__ int64_t stage_vectors() const {
    const int64_t sums = teams * (kTeamWarps / 2) * heads * kLaneNumbers * power_of_two_above(vectors, 32);
    return max(int64_t{stages} * tile_vectors(vectors), (sums + 3) / 4);
  }
};

struct Shared {
  uint4* tiles;    // [stages, tile]; later the teams' sums
  float* queries;  // [teams * heads, row]
  float* weights;  // [teams, split_tokens, weight_row]: first z = logit + ln votes, then exp(z - largest)
  float* largest;  // [teams * kTeamWarps, kMostTeamHeads]: the largest z of a warp's tokens
  float* sums;     // [teams * kTeamWarps, kMostTeamHeads]: the sum of their weights
  int* rows;       // likewise: the row of the first token with the largest z of the split

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stage_vectors())),
        queries(memory.array<float>(shape.teams * shape.heads * shape.row)),
        weights(memory.array<float>(shape.teams * shape.split_tokens * shape.weight_row)),
        largest(memory.array<float>(shape.teams * kTeamWarps * kMostTeamHeads)),
        sums(memory.array<float>(shape.teams * kTeamWarps * kMostTeamHeads)),
        rows(memory.array<int>(shape.teams * kTeamWarps * kMostTeamHeads)) {}
};

// One block's split as one of its threads sees it, and the steps of the kernel.
template <int kHeads>
struct Work {
  static constexpr int kMine = kThreadHeads<kHeads>;

  const Arguments& p;
  const Shared& shared;
  const Shape& shape;
  int g;                                    // KV head
  int first;                                // token
  int count;                                // tokens, at least 1
  int first_head;                           // of this thread's team, among the queries of all heads
  int heads;                                // of the team that exist; below kHeads in a group's last block
  int team, thread;                         // the thread's number within its team
  Arguments::VisibleTokens visible[kMine];  // of the thread's heads

  __device__ Work(const Arguments& arguments, const Shared& memory, const Shape& of_block, const Split& split)
      : p(arguments),
        shared(memory),
        shape(of_block),
        g(split.kv_head),
        first(split.first),
        count(split.tokens),
        team(static_cast<int>(threadIdx.x) / kTeam),
        thread(static_cast<int>(threadIdx.x) % kTeam) {
    const int teams = static_cast<int>(blockDim.x) / kTeam;
    const int head = (static_cast<int>(blockIdx.y) * teams + team) * kHeads;
    heads = max(0, min(kHeads, p.group_queries() - head));
    first_head = g * p.group_queries() + head;
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      visible[h] = {0, -1};
      if (my_head() + h < heads) visible[h] = p.visible_tokens(split, first_head + my_head() + h);
    }
  }

  __device__ int tile_count(int tile) const { return min(kTileTokens, count - tile * kTileTokens); }
  __device__ uint4* stage(int n) const {
    return shared.tiles + n % shape.stages * tile_vectors(shape.vectors);
  }
  __device__ float* weights(int token) const {
    return shared.weights + (team * shape.split_tokens + token) * kWeightRow<kHeads>;
  }

  // Where this split's partial results of one of the team's heads lie.
  __device__ int64_t partial_place(int head) const {
    return int64_t{p.partials.own_split()} * p.group_queries() + (first_head - g * p.group_queries() + head);
  }

  __device__ int tiles() const { return tiles_of(count); }  // of keys

  // Starts to copy the n-th tile: tiles of keys come first, then tiles of values.
  __device__ void load(int n) const {
    const bool of_keys = n < tiles();
    const int tile = of_keys ? n : n - tiles();
    if (tile < tiles()) {
      const RowPlace begin = place_of(p.cache.pages, g, first + tile * kTileTokens);
      const CacheVectors& rows = of_keys ? p.keys : p.values;
      TokenRows(rows.at(begin), rows.row_stride, shape.vectors).copy_to_tile(0, tile_count(tile), stage(n));
    }
    async_commit();
  }

  // Waits for the n-th tile and returns it. With two stages it then starts the copy of the next tile, into
  // the stage that no thread reads any more.
  __device__ const uint4* next_tile(int n) const {
    if (shape.stages == 1 && n > 0) {
      __syncthreads();  // no thread reads the previous tile any more
      load(n);
    }
    async_wait<0>();
    __syncthreads();
    if (shape.stages > 1) load(n + 1);
    return stage(n);
  }

  // Query heads beyond the group's last have queries of zeros.
  __device__ void load_queries() const {
    const int row = shape.vectors * kVectorNumbers;
    float* to = shared.queries + team * kHeads * row;
    for (int h = 0; h < kHeads; ++h) {
      const float* from = p.query(first_head + max(0, min(h, heads - 1)));
      for (int d = thread; d < row; d += kTeam) to[h * row + d] = h < heads ? from[d] : 0;
    }
  }

  // The first of the team's heads for which this thread forms logits.
  __device__ int my_head() const { return thread / kTileTokens * kMine; }

  // Forms the logits of one token of a tile.
  __device__ void add_logits(const uint4* tile, int n, float (&largest)[kMine]) const {
    const int slot = thread % kTileTokens;
    if (slot >= tile_count(n)) return;
    float sums[kMine] = {};
    const uint4* key = tile + slot * tile_row_vectors(shape.vectors);
    for (int v = 0; v < shape.vectors; v += kPartVectors) {
      float parts[kMine][kPartSums] = {};
#pragma unroll
      for (int i = v; i < v + kPartVectors; ++i) {
        if (i < shape.vectors) add_products(key, i, parts);
      }
#pragma unroll
      for (int h = 0; h < kMine; ++h) sums[h] += (parts[h][0] + parts[h][1]) + (parts[h][2] + parts[h][3]);
    }
    finish_logits(n * kTileTokens + slot, sums, largest);
  }

  // Adds the products of one vector of a key and of each query.
  __device__ void add_products(const uint4* key, int vector, float (&parts)[kMine][kPartSums]) const {
    const int row = shape.vectors * kVectorNumbers;
    const float* query = shared.queries + (team * kHeads + my_head()) * row + vector * kVectorNumbers;
    float numbers[kVectorNumbers];
    unpack<float>(key[vector], numbers);
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      if (my_head() + h >= kHeads) break;
#pragma unroll
      for (int i = 0; i < kVectorNumbers; i += kPartSums) {
        const float4 four = *reinterpret_cast<const float4*>(query + h * row + i);
        parts[h][0] += numbers[i] * four.x;
        parts[h][1] += numbers[i + 1] * four.y;
        parts[h][2] += numbers[i + 2] * four.z;
        parts[h][3] += numbers[i + 3] * four.w;
      }
    }
  }

  __device__ void finish_logits(int token, const float (&products)[kMine], float (&largest)[kMine]) const {
    const int position = first + token;
    const float votes = p.cache.log_votes ? p.cache.log_votes[g * p.capacity + position] : 0;
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      const int head = my_head() + h;
      if (head >= kHeads) break;
      const float logit = p.scale * products[h];
      const bool sees = token < visible[h].tokens;
      const float z = sees && token != visible[h].hidden ? logit + votes : kNothing;
      if (p.result.logits && sees) {
        p.result.logits[(first_head + head) * p.capacity + position] = logit;
      }
      weights(token)[head] = z;
      largest[h] = fmaxf(largest[h], z);
    }
  }

  // Reduces numbers[h] over the 64 threads with the same heads: within each warp, then over
  // the two warps; one barrier.
  template <class Number, class Join>
  __device__ void join(Number (&numbers)[kMine], Number* by_warp, const Join& join_two) const {
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      numbers[h] = join_lanes(numbers[h], join_two);
      if (lane() == 0) by_warp[warp() * kMostTeamHeads + h] = numbers[h];
    }
    __syncthreads();
    const Number* of_pair = by_warp + warp() / 2 * 2 * kMostTeamHeads;
#pragma unroll
    for (int h = 0; h < kMine; ++h) numbers[h] = join_two(of_pair[h], of_pair[kMostTeamHeads + h]);
  }

  // Replaces every z in shared memory by its weight exp(z - largest) and writes the split's largest z, its
  // row and the sum of weights. A barrier lies behind the last weight.
  __device__ void form_weights(float (&largest)[kMine]) const {
    join(largest, shared.largest, Larger());
    float sums[kMine] = {};
    int rows[kMine];
#pragma unroll
    for (int& row : rows) row = INT32_MAX;
    for (int token = thread % kTileTokens; token < count; token += kTileTokens) {
#pragma unroll
      for (int h = 0; h < kMine; ++h) {
        if (my_head() + h >= kHeads) break;
        float& z = weights(token)[my_head() + h];
        if (z == largest[h]) rows[h] = min(rows[h], first + token);
        z = z == kNothing ? 0 : expf(z - largest[h]);
        sums[h] += z;
      }
    }
    join(sums, shared.sums, Sum());
    join(rows, shared.rows, Smaller());
    if (thread % kTileTokens != 0) return;
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      if (my_head() + h >= heads) break;
      const int64_t n = first_head - g * p.group_queries() + my_head() + h;
      const SplitWeights weights{largest[h], sums[h], rows[h]};
      p.partials.weights_of(n, p.partials.own_split()) = weights;
    }
  }

  // The lanes that share a row of values. Each sums kLaneNumbers of its columns: two
  // vectors, 32 vectors apart.
  __device__ int columns() const { return power_of_two_above(shape.vectors, 32); }
  __device__ int my_column() const { return thread % columns(); }

  // sums[h] += weights[h] * values, for the tile's tokens thread / columns(), + kTeam / columns(), ...
  __device__ void add_values(const uint4* tile, int n, float (&sums)[kHeads][kLaneNumbers]) const {
    constexpr int kVectors = kLaneNumbers / kVectorNumbers;
    if (my_column() >= shape.vectors) return;
    for (int slot = thread / columns(); slot < tile_count(n); slot += kTeam / columns()) {
      float weight[kWeightRow<kHeads>];
      load_weights(weights(n * kTileTokens + slot), weight);
      const uint4* row = tile + slot * tile_row_vectors(shape.vectors);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int column = my_column() + v * 32;
        if (column >= shape.vectors) break;
        float numbers[kVectorNumbers];
        unpack<float>(row[column], numbers);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int i = 0; i < kVectorNumbers; ++i) {
            sums[h][v * kVectorNumbers + i] += weight[h] * numbers[i];
          }
        }
      }
    }
  }

  __device__ static void load_weights(const float* from, float (&weight)[kWeightRow<kHeads>]) {
    if constexpr (kHeads <= 2) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) weight[h] = from[h];
    } else {
#pragma unroll
      for (int h = 0; h < kWeightRow<kHeads>; h += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + h);
        weight[h] = four.x, weight[h + 1] = four.y, weight[h + 2] = four.z, weight[h + 3] = four.w;
      }
    }
  }

  // Adds the sums of all threads of a team that have the same column: within warps, then warps 2 and 3
  // to 0 and 1, then 1 to 0.
  __device__ void join_sums(float (&sums)[kHeads][kLaneNumbers]) const {
    for (int offset = 16; offset >= columns(); offset /= 2) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kLaneNumbers; ++i) sums[h][i] += __shfl_xor_sync(kAllLanes, sums[h][i], offset);
      }
    }
    const int warp = thread / 32;
    for (int half = kTeamWarps / 2; half > 0; half /= 2) {
      __syncthreads();  // no thread reads the tiles, or the previous step's sums, any more
      if (half <= warp && warp < 2 * half) exchange<false>(warp - half, sums);
      __syncthreads();
      if (warp < half) exchange<true>(warp, sums);
    }
  }

  // Writes a warp's sums to shared memory, or adds the sums there to them.
  template <bool add>
  __device__ void exchange(int place, float (&sums)[kHeads][kLaneNumbers]) const {
    if (lane() >= columns()) return;
    float* there = reinterpret_cast<float*>(shared.tiles) +
                   (team * (kTeamWarps / 2) + place) * kHeads * kLaneNumbers * columns() + my_column();
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kLaneNumbers; ++i) {
        float& other = there[(h * kLaneNumbers + i) * columns()];
        if constexpr (add) {
          sums[h][i] += other;
        } else {
          other = sums[h][i];
        }
      }
    }
  }

  __device__ void write_sums(const float (&sums)[kHeads][kLaneNumbers]) const {
    if (thread >= columns()) return;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads) break;
      float* row = p.partials.outputs + partial_place(h) * p.partials.row;
#pragma unroll
      for (int i = 0; i < kLaneNumbers; i += 4) {
        const int vector = my_column() + i / kVectorNumbers * 32;
        if (vector >= shape.vectors) break;
        *reinterpret_cast<float4*>(row + vector * kVectorNumbers + i % kVectorNumbers) =
            make_float4(sums[h][i], sums[h][i + 1], sums[h][i + 2], sums[h][i + 3]);
      }
    }
  }
};

template <int kHeads>
__device__ void attend(const Work<kHeads>& work) {
  float largest[kThreadHeads<kHeads>];
#pragma unroll
  for (float& entry : largest) entry = kNothing;
  work.load(0);
  work.load_queries();
#pragma unroll 1
  for (int n = 0; n < work.tiles(); ++n) work.add_logits(work.next_tile(n), n, largest);
  work.form_weights(largest);
  float sums[kHeads][kLaneNumbers] = {};
#pragma unroll 1
  for (int n = 0; n < work.tiles(); ++n) work.add_values(work.next_tile(work.tiles() + n), n, sums);
  work.join_sums(sums);
  work.write_sums(sums);
}

template <int kHeads>
Shape shape_of(const Arguments& arguments, int teams, int stages) {
  const auto row = static_cast<int>(padded<float>(arguments.cache.keys.cols));
  return {teams, stages, kHeads, kWeightRow<kHeads>, row / kVectorNumbers, row, arguments.most_tokens()};
}

// Logits, weights and weighted values of one split of a KV head's entries.
//
//                   64 tokens   64 tokens
//       keys       |  tile 0   |  tile 1   | ... | tile n-1 |  ->  z, then exp(z - largest): shared memory
//       values     |  tile 0   |  tile 1   | ... | tile n-1 |  ->  sum_j exp(z_j - largest) v_j: registers
//
//       keys: a thread has token t % 64 and one half of the team's heads, t / 64; t = 0..127 is its number
//             in the team
//       values: a thread has vectors t % p and t % p + 32 of the tokens t / p, t / p + 128 / p, ...
//
// grid       (splits of a segment's full cache, at most max(528, kv_heads capacity / 512) + kv_heads with its
//            kv_heads; ceil(group / (teams * kHeads)); segments); group = queries / kv_heads; blocks behind
//            the last split end at once, and those without anything to do
// block      128 teams; 2 teams for groups of more than 8, unless shared memory is short
// shared     16 max(64 stages (v | 1), 4 teams kHeads p) + 4 teams (kHeads row + split_tokens
//            weight_row + 96) bytes, with v vectors and `row` numbers in a padded row, p = v rounded up to a
//            power of two, at most 32; for head_dim 128, 4 heads and splits of 512 tokens: 78,208
// registers  at most, sm_90a and sm_80: 48 (kHeads 1), 64 (2), 70 (4), 86 (6), 105 (8)
// bytes      read: 32 v a token, its keys and values, once for each block along y; queries and log votes;
//            written: 4 row + 16 for each query and split, 4 for each logit if wanted; the segment's entries
//            in every block, and the queries' dominant rows where they are left out
// FLOP       4 query_heads entries head_dim, and an exponential for each query and entry; a team computes
//            kHeads heads even if fewer exist
template <int kHeads>
__global__ void __launch_bounds__(kMostTeams* kTeam, kBlocks<kHeads>)
    attention_portable_kernel(Arguments p, Shape shape) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared shared(memory, shape);
  const Split split = p.split();
  if (split.tokens == 0) return;
  const int of_block = shape.teams * kHeads, first_head = static_cast<int>(blockIdx.y) * of_block;
  const int heads = min(of_block, p.group_queries() - first_head);
  if (!p.has_work(split, split.kv_head * p.group_queries() + first_head, heads)) return;
  attend(Work<kHeads>(p, shared, shape, split));
}

// Where shared memory is short a block has one stage, or one team. Neither changes a team's heads or the
// order of its sums, so results are the same bits.
template <int kHeads>
void launch_with(const Arguments& arguments, int teams, Stream stream) {
  const auto with = [&](int of_teams, int stages) { return shape_of<kHeads>(arguments, of_teams, stages); };
  const auto shape =
      first_that_fits<Shared>({with(teams, kMostStages), with(teams, 1), with(1, kMostStages), with(1, 1)});
  const int64_t head_blocks = ceil_division(arguments.group_queries(), int64_t{shape.teams} * kHeads);
  launch_dependent<attention_portable_kernel<kHeads>>(
      {extent(arguments.blocks(), head_blocks, arguments.segments()), extent(shape.teams * kTeam),
       shared_bytes<Shared>(shape), stream},
      arguments, shape);
}

}  // namespace

template <>
void attend_to_splits(const Arguments& arguments, Stream stream) {
  const int group = arguments.group_queries();
  const int teams = group > kMostTeamHeads ? kMostTeams : 1;
  const int heads = (std::min(group, kMostTeams * kMostTeamHeads) + teams - 1) / teams;
  if (heads == 1) return launch_with<1>(arguments, teams, stream);
  if (heads == 2) return launch_with<2>(arguments, teams, stream);
  if (heads <= 4) return launch_with<4>(arguments, teams, stream);
  if (heads <= 6) return launch_with<6>(arguments, teams, stream);
  launch_with<8>(arguments, teams, stream);
}

// A lane has every fourth token of a split or fewer; the sums of four or more lanes
// are then joined by a tree.
template <>
KernelArithmetic split_arithmetic<float>(int64_t tokens, int64_t head_dim) {
  const int64_t in_part = ceil_division(std::min<int64_t>(head_dim, kPartNumbers), kPartSums);
  return {.precision = Precision::fp32,
          .accumulation_depth = ceil_division(tokens, 4) + 2,
          .product_depth = in_part + 2 + ceil_division(head_dim, kPartNumbers)};
}

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
