// Decode attention: a block takes some tokens of one KV head and up to 16 of the query heads that share it.
//
// Its keys, then its values stream through two buffers in shared memory. All logits of a block are there before the first
// weight is formed, so nothing is ever rescaled but once, where a second kernel joins the blocks' results in a fixed
// order. How tokens are split depends on the capacity and the number of KV heads alone.
#include "attention.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "attention_splits.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

using namespace attention_splits;

namespace {

// A team works on up to eight heads, with two threads per token of a tile when it forms logits; teams of a block share
// its tiles.
constexpr int kTeam = 2 * kTileTokens;
constexpr int kTeamWarps = kTeam / 32;
constexpr int kMostTeams = 2;
constexpr int kMostTeamHeads = 8;

constexpr int kMostStages = 2;
constexpr int kLaneNumbers = 8;  // numbers of a row of values for which a lane sums

// A product of a query and a key is summed in parts of 32 numbers, each in four partial sums: a small accumulation depth, tight
// bounds.
constexpr int kPartNumbers = 32;
constexpr int kPartSums = 4;
template <Storage T>
inline constexpr int kPartVectors = kPartNumbers / static_cast<int>(kVector<T>);

template <Storage T>
struct Arguments {
  DeviceTensor<const T> queries;
  CacheView<T> cache;
  float scale;
  AttentionResult result;
  Partials partials;
  Splits splits;

  __host__ __device__ int64_t capacity() const { return cache.keys.rows; }
  __host__ __device__ int group_size() const { return static_cast<int>(queries.rows / cache.keys.slices); }
};

// kHeads: the heads of one team. Their weights for a token lie together, for loads of 16 bytes.
template <int kHeads>
inline constexpr int kWeightRow = kHeads <= 2 ? kHeads : (kHeads + 3) / 4 * 4;
// Heads for which one of the two threads of a token forms logits.
template <int kHeads>
inline constexpr int kThreadHeads = (kHeads + 1) / 2;

struct Shape {
  int teams;
  int stages;      // tiles at a time
  int heads;       // of a team
  int weight_row;  // kWeightRow
  int vectors;     // of a row of keys or values
  int row;         // numbers in them
  int64_t split_tokens;

  // Vectors in all tiles, and no fewer than there are in the sums that half of each team's warps leave in their place.
  __host__ __device__ int64_t stage_vectors() const {
    const int64_t sums = teams * (kTeamWarps / 2) * heads * kLaneNumbers * power_of_two_above(vectors, 32);
    return max(int64_t{stages} * tile_vectors(vectors), (sums + 3) / 4);
  }
};

struct Shared {
  uint4* tiles;    // [stages, tile]; later for the teams' sums
  float* queries;  // [teams * heads, row]
  float* weights;  // [teams, split_tokens, weight_row]: first z = logit + ln votes, then exp(z - largest)
  float* largest;  // [teams * kTeamWarps, thread heads], of the tokens of one warp
  float* sums;     // likewise

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stage_vectors())),
        queries(memory.array<float>(shape.teams * shape.heads * shape.row)),
        weights(memory.array<float>(shape.teams * shape.split_tokens * shape.weight_row)),
        largest(memory.array<float>(shape.teams * kTeamWarps * kMostTeamHeads)),
        sums(memory.array<float>(shape.teams * kTeamWarps * kMostTeamHeads)) {}
};

// One block's part of the work.
template <Storage T, int kHeads>
struct Split {
  static constexpr int kMine = kThreadHeads<kHeads>;

  const Arguments<T>& p;
  const Shared& shared;
  TokenRows keys, values;
  int stages;
  int64_t g;           // KV head
  int64_t first;       // token
  int count;           // tokens; <= 0: none
  int tiles;           // of keys
  int64_t first_head;  // of this thread's team, as a query head
  int heads;           // that the team really has
  int team, thread;    // the thread's number within its team

  __device__ Split(const Arguments<T>& arguments, const Shared& memory, int tiles_at_a_time)
      : p(arguments),
        shared(memory),
        keys(arguments.cache.keys, blockIdx.y),
        values(arguments.cache.values, blockIdx.y),
        stages(tiles_at_a_time),
        g(blockIdx.y),
        first(blockIdx.x * arguments.splits.tokens),
        team(static_cast<int>(threadIdx.x) / kTeam),
        thread(static_cast<int>(threadIdx.x) % kTeam) {
    count = static_cast<int>(min(p.splits.tokens, p.cache.entries[g] - first));
    tiles = (count + kTileTokens - 1) / kTileTokens;
    const int teams = static_cast<int>(blockDim.x) / kTeam;
    const int head = (static_cast<int>(blockIdx.z) * teams + team) * kHeads;
    first_head = g * p.group_size() + head;
    heads = max(0, min(kHeads, p.group_size() - head));
  }

  __device__ int tile_count(int tile) const { return min(kTileTokens, count - tile * kTileTokens); }
  __device__ uint4* stage(int n) const { return shared.tiles + n % stages * tile_vectors(keys.vectors); }
  __device__ float* weights(int token) const {
    return shared.weights + (team * p.splits.tokens + token) * kWeightRow<kHeads>;
  }

  // Starts to copy the n-th tile: first come the keys', then the values'.
  __device__ void load(int n) const {
    const bool of_keys = n < tiles;
    const int tile = of_keys ? n : n - tiles;
    if (tile < tiles) {
      const TokenRows rows = of_keys ? keys : values;
      rows.copy_to_tile(first + tile * kTileTokens, tile_count(tile), stage(n));
    }
    async_commit();
  }

  // Waits for the n-th tile. Where there is room for it the next is on its way meanwhile: it takes a place that is
  // no longer read.
  __device__ const uint4* next_tile(int n) const {
    if (stages == 1 && n > 0) {
      __syncthreads();  // all are through with the tile before
      load(n);
    }
    async_wait<0>();
    __syncthreads();
    if (stages > 1) load(n + 1);
    return stage(n);
  }

  // Heads that there are not get queries of zeros.
  __device__ void load_queries() const {
    const int row = keys.vectors * static_cast<int>(kVector<T>);
    float* to = shared.queries + team * kHeads * row;
    for (int h = 0; h < kHeads; ++h) {
      for (int d = thread; d < row; d += kTeam) {
        to[h * row + d] =
            h < heads ? to_float(p.queries.data[(first_head + h) * p.queries.row_stride + d]) : 0;
      }
    }
  }

  // The first of the heads for which this thread forms logits.
  __device__ int my_head() const { return thread / kTileTokens * kMine; }

  // Forms the logits of one token of a tile.
  __device__ void add_logits(const uint4* tile, int n, float (&largest)[kMine]) const {
    const int slot = thread % kTileTokens;
    if (slot >= tile_count(n)) return;
    float sums[kMine] = {};
    const uint4* key = tile + slot * tile_row_vectors(keys.vectors);
    for (int v = 0; v < keys.vectors; v += kPartVectors<T>) {
      float parts[kMine][kPartSums] = {};
#pragma unroll
      for (int i = v; i < v + kPartVectors<T>; ++i) {
        if (i < keys.vectors) add_products(key, i, parts);
      }
#pragma unroll
      for (int h = 0; h < kMine; ++h) sums[h] += (parts[h][0] + parts[h][1]) + (parts[h][2] + parts[h][3]);
    }
    finish_logits(n * kTileTokens + slot, sums, largest);
  }

  // Adds the products of one vector of a key and of each query.
  __device__ void add_products(const uint4* key, int vector, float (&parts)[kMine][kPartSums]) const {
    const int row = keys.vectors * static_cast<int>(kVector<T>);
    const float* query = shared.queries + (team * kHeads + my_head()) * row + vector * kVector<T>;
    float numbers[kVector<T>];
    unpack<T>(key[vector], numbers);
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      if (my_head() + h >= kHeads) break;
#pragma unroll
      for (int i = 0; i < kVector<T>; i += kPartSums) {
        const float4 four = *reinterpret_cast<const float4*>(query + h * row + i);
        parts[h][0] += numbers[i] * four.x;
        parts[h][1] += numbers[i + 1] * four.y;
        parts[h][2] += numbers[i + 2] * four.z;
        parts[h][3] += numbers[i + 3] * four.w;
      }
    }
  }

  __device__ void finish_logits(int token, const float (&products)[kMine], float (&largest)[kMine]) const {
    const int64_t position = first + token;
    const float votes = p.cache.log_votes ? p.cache.log_votes[g * p.capacity() + position] : 0;
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      const int head = my_head() + h;
      if (head >= kHeads) break;
      const float logit = p.scale * products[h];
      if (p.result.logits && head < heads) {
        p.result.logits[(first_head + head) * p.capacity() + position] = logit;
      }
      weights(token)[head] = logit + votes;
      largest[h] = fmaxf(largest[h], logit + votes);
    }
  }

  // Joins what each warp knows of its tokens with what the other warp of the same heads knows; a barrier.
  template <class Join>
  __device__ void join(float (&numbers)[kMine], float* by_warp, const Join& join_two) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      for (int offset = 16; offset > 0; offset /= 2) {
        numbers[h] = join_two(numbers[h], __shfl_xor_sync(kAllLanes, numbers[h], offset));
      }
      if (threadIdx.x % 32 == 0) by_warp[warp * kMostTeamHeads + h] = numbers[h];
    }
    __syncthreads();
    const float* of_pair = by_warp + warp / 2 * 2 * kMostTeamHeads;
#pragma unroll
    for (int h = 0; h < kMine; ++h) numbers[h] = join_two(of_pair[h], of_pair[kMostTeamHeads + h]);
  }

  // Turns z into exp(z - largest), writes down the largest and the sum; a barrier behind all.
  __device__ void form_weights(float (&largest)[kMine]) const {
    join(largest, shared.largest, [](float a, float b) { return fmaxf(a, b); });
    float sums[kMine] = {};
    for (int token = thread % kTileTokens; token < count; token += kTileTokens) {
#pragma unroll
      for (int h = 0; h < kMine; ++h) {
        if (my_head() + h >= kHeads) break;
        float& z = weights(token)[my_head() + h];
        z = z == kNothing ? 0 : expf(z - largest[h]);
        sums[h] += z;
      }
    }
    join(sums, shared.sums, [](float a, float b) { return a + b; });
    if (thread % kTileTokens != 0) return;
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      if (my_head() + h >= heads) break;
      const int64_t place = (first_head + my_head() + h) * p.splits.count + blockIdx.x;
      p.partials.largest[place] = largest[h];
      p.partials.sums[place] = sums[h];
    }
  }

  // Lanes that share a row of values. Each sums kLaneNumbers of its numbers: one vector of 16-bit numbers, two of fp32,
  // a row's first and second half.
  __device__ int columns() const { return power_of_two_above(values.vectors, 32); }
  __device__ int my_column() const { return thread % columns(); }

  // sums[h] += weights[h] * values, for every so-many-th token of a tile
  __device__ void add_values(const uint4* tile, int n, float (&sums)[kHeads][kLaneNumbers]) const {
    constexpr int kVectors = kLaneNumbers / static_cast<int>(kVector<T>);
    if (my_column() >= values.vectors) return;
    for (int slot = thread / columns(); slot < tile_count(n); slot += kTeam / columns()) {
      float weight[kWeightRow<kHeads>];
      load_weights(weights(n * kTileTokens + slot), weight);
      const uint4* row = tile + slot * tile_row_vectors(values.vectors);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int column = my_column() + v * 32;
        if (column >= values.vectors) break;
        float numbers[kVector<T>];
        unpack<T>(row[column], numbers);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int i = 0; i < kVector<T>; ++i) {
            sums[h][v * static_cast<int>(kVector<T>) + i] += weight[h] * numbers[i];
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

  // Adds the sums of all of a team's threads of one column: within warps, then warps 2 and 3 to 0 and 1, then 1 to 0.
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
      __syncthreads();  // no thread reads the tiles, or the sums of the step before, any more
      if (half <= warp && warp < 2 * half) exchange<false>(warp - half, sums);
      __syncthreads();
      if (warp < half) exchange<true>(warp, sums);
    }
  }

  // Writes a warp's sums to shared memory, or adds what is there.
  template <bool add>
  __device__ void exchange(int place, float (&sums)[kHeads][kLaneNumbers]) const {
    if (thread % 32 >= columns()) return;
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
      float* row = p.partials.outputs + ((first_head + h) * p.splits.count + blockIdx.x) * p.partials.row;
#pragma unroll
      for (int i = 0; i < kLaneNumbers; i += 4) {
        const int vector = my_column() + i / static_cast<int>(kVector<T>) * 32;
        if (vector >= values.vectors) break;
        *reinterpret_cast<float4*>(row + vector * kVector<T> + i % static_cast<int>(kVector<T>)) =
            make_float4(sums[h][i], sums[h][i + 1], sums[h][i + 2], sums[h][i + 3]);
      }
    }
  }
};

template <Storage T, int kHeads>
__device__ void attend(const Split<T, kHeads>& split) {
  float largest[kThreadHeads<kHeads>];
#pragma unroll
  for (float& entry : largest) entry = kNothing;
  split.load(0);
  split.load_queries();
  for (int n = 0; n < split.tiles; ++n) split.add_logits(split.next_tile(n), n, largest);
  split.form_weights(largest);
  float sums[kHeads][kLaneNumbers] = {};
  for (int n = 0; n < split.tiles; ++n) split.add_values(split.next_tile(split.tiles + n), n, sums);
  split.join_sums(sums);
  split.write_sums(sums);
}

template <Storage T, int kHeads>
Shape shape_of(const DeviceTensor<const T>& keys, int teams, int stages, int64_t split_tokens) {
  const auto row = static_cast<int>(padded<T>(keys.cols));
  return {teams, stages, kHeads, kWeightRow<kHeads>, row / static_cast<int>(kVector<T>), row, split_tokens};
}

template <Storage T, int kHeads>
__global__ void __launch_bounds__(kMostTeams* kTeam) attention_split_kernel(Arguments<T> p, Shape shape) {
  SharedMemory memory;
  const Shared shared(memory, shape);
  const Split<T, kHeads> split(p, shared, shape.stages);
  if (split.count > 0) attend(split);
}

template <Storage T>
void require_valid(const DeviceTensor<const T>& queries, const CacheView<T>& cache) {
  require_layout("queries", queries);
  require_layout("keys", cache.keys);
  require_layout("values", cache.values);
  require_equal("slices of queries", queries.slices, "queries of a head", 1);
  require_groups(queries.rows, cache.keys.slices);
  require_equal("KV heads of keys", cache.keys.slices, "KV heads of values", cache.values.slices);
  require_equal("capacity of keys", cache.keys.rows, "capacity of values", cache.values.rows);
  require_equal("columns of queries", queries.cols, "columns of keys", cache.keys.cols);
  require_equal("columns of keys", cache.keys.cols, "columns of values", cache.values.cols);
  require_range("head_dim", queries.cols, 1, 256);
}

// Where shared memory is short a block has one tile at a time, or one team. Neither changes which heads a team has or in
// which order it sums, so bits do not depend on it.
template <int kHeads, Storage T>
void launch_split(const Arguments<T>& arguments, int teams, Stream stream) {
  const DeviceTensor<const T>& keys = arguments.cache.keys;
  const auto with = [&](int of_teams, int stages) {
    return shape_of<T, kHeads>(keys, of_teams, stages, arguments.splits.tokens);
  };
  const auto shape =
      first_that_fits<Shared>({with(teams, kMostStages), with(teams, 1), with(1, kMostStages), with(1, 1)});
  const int64_t head_blocks = ceil_division(arguments.group_size(), int64_t{shape.teams} * kHeads);
  launch({extent(arguments.splits.count, keys.slices, head_blocks), extent(shape.teams * kTeam),
          shared_bytes<Shared>(shape), stream},
         attention_split_kernel<T, kHeads>, arguments, shape);
}

template <Storage T>
void launch_split(const Arguments<T>& arguments, Stream stream) {
  if (arguments.splits.count == 0) return;
  const int group = arguments.group_size();
  const int teams = group > kMostTeamHeads ? kMostTeams : 1;
  const int heads = (std::min(group, kMostTeams * kMostTeamHeads) + teams - 1) / teams;
  if (heads == 1) return launch_split<1>(arguments, teams, stream);
  if (heads == 2) return launch_split<2>(arguments, teams, stream);
  if (heads <= 4) return launch_split<4>(arguments, teams, stream);
  if (heads <= 6) return launch_split<6>(arguments, teams, stream);
  launch_split<8>(arguments, teams, stream);
}

// Of the sum over at most so many entries, whatever the cache's capacity.
int64_t accumulation_depth(int64_t entries) {
  int64_t longest = 0;
  for (int64_t tokens = kTileTokens; tokens <= kMostSplitTokens; tokens += kTileTokens) {
    // In a split a lane has every fourth token or fewer; the sums of four or more lanes are then joined by a tree.
    const int64_t in_split = ceil_division(std::min(entries, tokens), 4) + 2;
    // Splits have fewer than the most tokens only where there are then not more of them than are wanted, and one for
    // a KV head's last tokens.
    const int64_t splits =
        std::min(ceil_division(entries, tokens), tokens < kMostSplitTokens ? kBlocksWanted + 1 : entries);
    const int64_t in_slice = ceil_division(splits, kJoinSlices);
    const int64_t joining = std::min<int64_t>(in_slice, kJoinPart) + ceil_division(in_slice, kJoinPart) + 4;
    longest = std::max(longest, in_split + (splits > 1 ? joining : 0));
  }
  return entries > 0 ? longest : 0;
}

int64_t product_depth(int64_t head_dim) {
  const int64_t in_part = ceil_division(std::min<int64_t>(head_dim, kPartNumbers), kPartSums);
  return in_part + 2 + ceil_division(head_dim, kPartNumbers);
}

}  // namespace

int64_t attention_workspace(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t capacity) {
  return Partials::bytes(query_heads, head_dim, Splits(kv_heads, capacity).count);
}

template <Storage T>
void attention(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
               const AttentionResult& result, Workspace workspace, Stream stream) {
  require_valid(queries, cache);
  const int64_t kv_heads = cache.keys.slices, capacity = cache.keys.rows;
  require_workspace(workspace, attention_workspace(queries.rows, kv_heads, queries.cols, capacity));
  const Splits splits(kv_heads, capacity);
  const Partials partials(workspace.data, queries.rows, queries.cols, splits.count);
  launch_split(Arguments<T>{queries, cache, static_cast<float>(scale), result, partials, splits}, stream);
  join_splits({cache.entries, partials, splits, result, queries.rows, queries.rows / kv_heads, queries.cols},
              stream);
}

template void attention(DeviceTensor<const float>, const CacheView<float>&, double, const AttentionResult&,
                        Workspace, Stream);
template void attention(DeviceTensor<const Float16>, const CacheView<Float16>&, double,
                        const AttentionResult&, Workspace, Stream);
template void attention(DeviceTensor<const Bfloat16>, const CacheView<Bfloat16>&, double,
                        const AttentionResult&, Workspace, Stream);

KernelArithmetic attention_arithmetic(int64_t entries, int64_t head_dim) {
  return {.precision = Precision::fp32,
          .accumulation_depth = accumulation_depth(entries),
          .product_depth = product_depth(head_dim),
          .rescalings = entries <= kTileTokens ? 0 : 1};
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
