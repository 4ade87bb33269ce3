// OBCache's scores of a prompt by fp32 multiply-adds: fp32. Products are formed as window_tiles.hpp says: of
// queries and keys, and of outputs times G and values. In the head of the kernel below, a padded row of keys
// has v vectors of 16 bytes, `row` numbers in all.
#include <kvbound/cuda/primitives/token_tile.hpp>

#include "obcache_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace obcache_kernels {
namespace {

using namespace obcache_terms;
using namespace window_tiles;

constexpr int kRows = 4;
constexpr int kQueryRows = kRows * kRowLanes;

struct Shared {
  uint4* tiles;     // [stages, tile]: keys and values, or one after the other
  float* queries;   // [kQueryRows, query_row]
  float* outputs;   // [kQueryRows, query_row]: o G; with one tile at a time in the memory of `queries`
  float* partials;  // [kRowLanes, kTileTokens], in the memory of `queries`

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stages * tile_vectors(shape.vectors))),
        queries(memory.array<float>(max(shape.query_rows * shape.query_row, kRowLanes * kTileTokens))),
        outputs(shape.stages > 1 ? memory.array<float>(shape.query_rows * shape.query_row) : queries),
        partials(queries) {}
};

// The tiles of keys and values of one block. Where shared memory has room for one, each is
// copied again when it is used.
struct Tiles {
  TokenRows keys, values;
  const Shared& shared;
  const Shape& shape;
  int64_t first;
  int count;

  __device__ void copy(const TokenRows& rows, int stage) const {
    rows.copy_to_tile(first, count, shared.tiles + stage * tile_vectors(shape.vectors));
    async_commit();
    async_wait<0>();
  }
  __device__ void begin() const {
    if (shape.stages == 1) return;
    copy(keys, 0);
    copy(values, 1);
  }
  // The tile, once all threads have called this; none reads the previous tile any more.
  __device__ const uint4* use(const TokenRows& rows, int stage) const {
    if (shape.stages > 1) return shared.tiles + stage * tile_vectors(shape.vectors);
    __syncthreads();
    copy(rows, 0);
    __syncthreads();
    return shared.tiles;
  }
};

// Copies the outputs times G of queries first, first + 1, ... of a head to shared memory; rows from `count`
// on, and columns from head_dim on, are zeros.
__device__ void load_outputs(const Arguments<float>& p, int64_t head, int64_t first, int count,
                             const Shape& shape, float* outputs) {
  const auto head_dim = static_cast<int>(p.values.cols);
  const int row = shape.query_row;
  for (int n = static_cast<int>(threadIdx.x); n < shape.query_rows * row; n += kThreads) {
    const int64_t place = (first + n / row) * p.window.queries.slices + head;
    outputs[n] = n / row < count && n % row < head_dim ? p.gram_outputs[place * head_dim + n % row] : 0.0f;
  }
}

// Adds the scores of the thread's rows, of queries first, first + 1, ... of one query head.
template <Change change>
__device__ void add_scores(const Arguments<float>& p, const Products<float, kRows>& logits,
                           const Products<float, kRows>& products, int64_t head, int64_t first,
                           int64_t first_token, const float (&norms)[kTokens], float (&sums)[kTokens]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t query = first + logits.row(r);
    if (query >= p.window.size()) break;
    const int64_t place = query * p.window.queries.slices + head;
    const float log_sum = p.log_sum_exp[head * p.window.size() + query];
    const float output_norm = change == Change::value ? 0 : p.output_norms[place];
    const int64_t dominant = leaves_out_dominant(change) ? p.dominant[place] : -1;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int64_t token = first_token + logits.token(t);
      if (token >= p.window.visible(query)) continue;
      const float z = logits.numbers[r][t];
      sums[t] += token == dominant ? p.dominant_scores[place]
                                   : score_of(table_2<change>(z - log_sum, z), norms[t],
                                              products.numbers[r][t], output_norm);
    }
  }
}

// The squared lengths of the values of the thread's tokens, for one query head; 0 for tokens
// that the tile does not have.
__device__ void load_norms(const Arguments<float>& p, int64_t head, int64_t first_token, int count,
                           float (&norms)[kTokens]) {
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int token = Products<float, kRows>::token(t);
    norms[t] = token < count ? p.norms[head * p.window.tokens() + first_token + token] : 0;
  }
}

// Adds the scores by up to kQueryRows queries, first, first + 1, ... of query head h of a
// group, in the group's order.
template <Change change>
__device__ void add_queries(const Arguments<float>& p, const Tiles& tiles, int64_t h, int64_t head,
                            int64_t first, const float (&norms)[kTokens], float (&sums)[kTokens]) {
  const Shared& shared = tiles.shared;
  const Shape& shape = tiles.shape;
  const auto rows = static_cast<int>(min(p.window.size() - first, int64_t{kQueryRows}));
  __syncthreads();  // all threads see the tiles, and none reads the previous queries any more
  load_queries(p.window, blockIdx.y, h * p.window.size() + first, rows, shape, shared.queries);
  const auto load = [&] { load_outputs(p, head, first, rows, shape, shared.outputs); };
  if (change != Change::value && shape.stages > 1) load();
  __syncthreads();
  const Products<float, kRows> logits(tiles.use(tiles.keys, 0), shared.queries, shape, p.window.scale);
  if constexpr (change == Change::value) {
    add_scores<change>(p, logits, logits, head, first, tiles.first, norms, sums);
  } else {
    if (shape.stages == 1) {
      __syncthreads();  // no thread reads the queries any more
      load();
    }
    const Products<float, kRows> products(tiles.use(tiles.values, 1), shared.outputs, shape, 1);
    add_scores<change>(p, logits, products, head, first, tiles.first, norms, sums);
  }
}

// Adds the sums of the threads that have the same tokens, and writes the scores of the
// tile for one query head.
__device__ void store_scores(const Arguments<float>& p, const Tiles& tiles, int64_t head,
                             const float (&sums)[kTokens]) {
  const auto thread = static_cast<int>(threadIdx.x);
  float* const partials = tiles.shared.partials;
  __syncthreads();  // no thread reads the queries any more
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    partials[thread / kTokenLanes * kTileTokens + Products<float, kRows>::token(t)] = sums[t];
  }
  __syncthreads();
  if (thread >= tiles.count) return;
  p.scores[head * p.window.tokens() + tiles.first + thread] = sum_of_row_lanes(partials, thread);
}

// The window's scores of one tile of tokens, for all query heads of its KV head, one after the other.
//
// grid       (ceil(tokens / 64), kv_heads)
// block      128
// shared     stages (1024 (v | 1) + 4 max(32 (row + 4), 512)) bytes; 68,608 for head_dim 128, BF16, 2 stages
// registers  118-158 (sm_90a), 120-152 (sm_80)
// bytes      read: 32 v for each token and KV head; the group's queries, outputs and their norms for each
//            block, mostly from the L2 cache; 4 query_heads tokens; written: 4 query_heads tokens
// FLOP       4 query_heads window tokens head_dim, 10 and an exponential for each query and token
template <Change change>
__global__ void __launch_bounds__(kThreads, 3)
    window_change_scores_portable_kernel(Arguments<float> p, Shape shape) {
  SharedMemory memory;
  const Shared shared(memory, shape);
  const int64_t g = blockIdx.y;
  const int64_t first_token = blockIdx.x * static_cast<int64_t>(kTileTokens);
  const auto count = static_cast<int>(min(int64_t{kTileTokens}, p.window.tokens() - first_token));
  const Tiles tiles{TokenRows(p.window.keys, g), TokenRows(p.values, g), shared, shape, first_token, count};
  tiles.begin();
  for (int64_t h = 0; h < p.window.group_size(); ++h) {
    const int64_t head = g * p.window.group_size() + h;
    float norms[kTokens], sums[kTokens] = {};
    load_norms(p, head, first_token, count, norms);
    for (int64_t first = 0; first < p.window.size(); first += kQueryRows) {
      add_queries<change>(p, tiles, h, head, first, norms, sums);
    }
    store_scores(p, tiles, head, sums);
  }
}

}  // namespace

void launch_portable(Change change, const Arguments<float>& arguments, Stream stream) {
  const Window<float>& window = arguments.window;
  const auto with = [&](int tiles) { return Shape(window.keys, tiles, kQueryRows); };
  const Shape shape = first_that_fits<Shared>({with(2), with(1)});
  for_change(change, [&]<Change of>() {
    launch<window_change_scores_portable_kernel<of>>(
        {extent(ceil_division(window.tokens(), kTileTokens), window.keys.slices), extent(kThreads),
         shared_bytes<Shared>(shape), stream},
        arguments, shape);
  });
}

}  // namespace obcache_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
