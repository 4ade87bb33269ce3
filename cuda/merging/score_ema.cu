#include "score_ema.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/exponential.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/row_ring.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/window/query_parts.hpp>
#include <kvbound/cuda/window/snap_kv_kernels.hpp>
#include <kvbound/cuda/window/window_tiles.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace window_tiles;

constexpr int kRows = 4;
constexpr int kQueryRows = kRows * kRowLanes;
constexpr int kEach = 128;
constexpr int kHeadsAtATime = 4;

constexpr int kAtOnce = 32;  // tokens whose logits a warp has in shared memory, one for each lane
constexpr int kLogitRow =
    kAtOnce + 4;  // numbers from one query's to the next: four queries are in different banks

// A mantissa below this limit is moved into its exponent, so that no exponential underflows
// that would change the sum.
constexpr float kLeastMantissa = 0x1p-64f;

struct LogitsShared {
  uint4* tile;     // keys
  float* queries;  // [kQueryRows, query_row]

  __host__ __device__ LogitsShared(SharedMemory& memory, const Shape& shape)
      : tile(memory.array<uint4>(tile_vectors(shape.vectors))),
        queries(memory.array<float>(shape.query_rows * shape.query_row)) {}
};

// The logits of one query head's window for a tile of 64 tokens, fp32; those of tokens in a query's
// future are written, too.
//
// grid       (ceil(tokens / 64), group), group = query_heads / kv_heads
// block      128
// shared     1024 (v | 1) + 128 (row + 4) bytes, with v vectors of 16 bytes and `row` numbers in a padded row
// registers  96 (sm_90a and sm_80)
// bytes      read: 16 v for each token and query head, and the queries for each block;
//            written: 4 for each logit
// FLOP       2 window tokens head_dim for each query head
__global__ void __launch_bounds__(kThreads, 4)
    window_logits_kernel(Window<float> window, int64_t g, float* logits, Shape shape) {
  begin_dependent_launch();
  SharedMemory memory;
  const LogitsShared shared(memory, shape);
  const int64_t first_token = blockIdx.x * static_cast<int64_t>(kTileTokens), h = blockIdx.y;
  const auto count = static_cast<int>(min(int64_t{kTileTokens}, window.tokens() - first_token));
  TokenRows(window.keys, g).copy_to_tile(first_token, count, shared.tile);
  async_commit();
  async_wait<0>();
  for (int64_t first = 0; first < window.size(); first += kQueryRows) {
    const auto rows = static_cast<int>(min(window.size() - first, int64_t{kQueryRows}));
    __syncthreads();  // all threads see the keys, and none reads the previous queries any more
    load_queries(window, g, h * window.size() + first, rows, shape, shared.queries);
    __syncthreads();
    const Products<float, kRows> products(shared.tile, shared.queries, shape, window.scale);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const int row = products.row(r), token = products.token(t);
        if (row >= rows || token >= count) continue;
        logits[(h * window.size() + first + row) * window.tokens() + first_token + token] =
            products.numbers[r][t];
      }
    }
  }
}

// The past's weight a in an average, and that of what is new.
struct Decay {
  float factor, log_factor, fresh;
  bool forgets;  // a = 0, also where single precision has smaller numbers
  bool lasts;    // the weights of a part's queries, at most 32, differ by less than 2^14

  explicit Decay(const PredictedScores& options)
      : factor(static_cast<float>(options.ema)),
        log_factor(static_cast<float>(std::log(options.ema))),
        fresh(static_cast<float>(1 - options.ema)),
        forgets(options.ema == 0),
        lasts(factor >= 0.75F) {}

  // c' = a c + (1 - a)
  __device__ float weight(float past) const { return factor * past + fresh; }
};

// One average.
struct Average {
  float exponent, mantissa;

  // S' = a S + (1 - a) e^number, with the larger of both exponents. A factor below 2^-60 goes into the past's
  // exponent: its product with a mantissa might underflow, though the past outweighs the number.
  __device__ void observe(const Decay& decay, float number) {
    if (decay.forgets) {
      exponent = number;
      mantissa = 1;
      return;
    }
    const bool is_small = decay.factor < 0x1p-60f;
    const float past_exponent = is_small ? exponent + decay.log_factor : exponent;
    const float past = is_small ? mantissa : decay.factor * mantissa;
    const bool larger = number > past_exponent;
    const float factor = expf(larger ? past_exponent - number : number - past_exponent);
    mantissa = larger ? past * factor + decay.fresh : past + decay.fresh * factor;
    exponent = larger ? number : past_exponent;
    settle();
  }

  // Observes numbers from..rows - 1 of a part; decay.lasts. With the largest exponent of all
  // known beforehand, each takes one exponential and no branch, and those that underflow are
  // smaller than 2^-48 of the sum.
  //
  // numbers  [part, kLogitRow]
  __device__ void observe_all(const Decay& decay, const float* numbers, int from, int rows) {
    constexpr auto kLog2E = static_cast<float>(std::numbers::log2e);
    if (from >= rows) return;
    float most = exponent;
#pragma unroll 8
    for (int i = from; i < rows; ++i) most = fmaxf(most, numbers[i * kLogitRow]);
    mantissa *= power_of_two((exponent - most) * kLog2E);
#pragma unroll 8
    for (int i = from; i < rows; ++i) {
      const float factor = power_of_two((numbers[i * kLogitRow] - most) * kLog2E);
      mantissa = fmaf(decay.factor, mantissa, decay.fresh * factor);
    }
    exponent = most;
    settle();
  }

  // Moves a small mantissa into the exponent.
  __device__ void settle() {
    if (mantissa >= kLeastMantissa) return;
    exponent += logf(mantissa);
    mantissa = 1;
  }
};

struct AccumulateArguments {
  const float* logits;       // [group, window, tokens]
  const float* log_sum_exp;  // [query_heads, window]; null: raw scores
  int64_t g, group_size, window, tokens;
  Decay decay;
  ScoreAverages averages;
};

// The averages of one query head's scores of a token: a thread takes in the queries that see
// its token, in their order.
//
// grid       (ceil(tokens / 128), group)
// block      128; no shared memory
// registers  30 (sm_90a and sm_80)
// bytes      read: 4 for each logit, and the log-sum-exp for each block; written: 8 for each query head and
//            token, 4 for each KV head and token
// FLOP       6 and an exponential for each logit
__global__ void __launch_bounds__(kEach) accumulate_kernel(AccumulateArguments p) {
  begin_dependent_launch();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, h = blockIdx.y;
  if (token >= p.tokens) return;
  const int64_t head = p.g * p.group_size + h;
  Average average{kNothing, 0};
  float weight = 0;
  for (int64_t i = max(int64_t{0}, token - (p.tokens - p.window)); i < p.window; ++i) {
    const float sum = p.log_sum_exp ? p.log_sum_exp[head * p.window + i] : 0;
    average.observe(p.decay, p.logits[(h * p.window + i) * p.tokens + token] - sum);
    weight = p.decay.weight(weight);
  }
  p.averages.exponents[head * p.averages.capacity + token] = average.exponent;
  p.averages.mantissas[head * p.averages.capacity + token] = average.mantissa;
  if (h == 0) p.averages.weights[p.g * p.averages.capacity + token] = weight;
}

// The ring of tiles of keys.
struct RingShape {
  int stages;
  int tile;  // vectors
  int own;   // vectors of a warp
};
struct RingShared {
  uint4* ring;  // [stages, tile]
  uint4*
      own;  // [kWarps, own]: a warp's queries while they are loaded, then their scores [queries, kLogitRow]

  static constexpr int kWarps = kThreads / 32;
  __host__ __device__ RingShared(SharedMemory& memory, const RingShape& shape)
      : ring(memory.array<uint4>(shape.stages * shape.tile)), own(memory.array<uint4>(kWarps * shape.own)) {}
};

template <Storage16 T>
struct WindowArguments {
  Window<T> window;
  const float* log_sum_exp;  // [query_heads, window]; null: raw scores
  Decay decay;
  ScoreAverages averages;
  int64_t split_tokens;
};

// Writes the scores of 16 tokens by a warp's queries.
//
// sums  what is subtracted from the logits of the thread's queries
// to    of the first token and query, [query, kLogitRow]
template <Storage16 T, int kSteps, int kTiles>
__device__ void write_scores(const uint4* keys, const RowFragments<kSteps, kTiles>& queries, float scale,
                             const float (&sums)[2 * kTiles], float* to) {
  float products[kTiles][4];
  form_products<T>(keys, queries, products);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = tile * kFragmentRows + lane() % 4 * 2 + i % 2, token = lane() / 4 + i / 2 * 8;
      to[query * kLogitRow + token] = fmaf(products[tile][i], scale, -sums[2 * tile + i % 2]);
    }
  }
}

// Takes the scores by queries from..rows - 1 of a part, those that see the thread's token, into its averages.
//
// scores      of the thread's token, [query, kLogitRow]
// place       of the token's averages; `weight` likewise, null for heads that do not write it
// first_part  whether there are no averages yet
__device__ inline void observe_part(const Decay& decay, const ScoreAverages& averages, const float* scores,
                                    int from, int rows, int64_t place, float* weight, bool first_part) {
  Average average{kNothing, 0};
  if (!first_part) average = {averages.exponents[place], averages.mantissas[place]};
  if (decay.lasts) {
    average.observe_all(decay, scores, from, rows);
  } else {
    for (int i = from; i < rows; ++i) average.observe(decay, scores[i * kLogitRow]);
  }
  averages.exponents[place] = average.exponent;
  averages.mantissas[place] = average.mantissa;
  if (!weight) return;
  float own = first_part ? 0 : *weight;
  for (int i = from; i < rows; ++i) own = decay.weight(own);
  *weight = own;
}

// The averages of a split's tokens for a query head each warp, 16-bit types: a warp forms the scores of 32
// tokens by mma.sync as window_attention_mma_kernel does, and each lane takes one token's in. Larger windows
// take a part after the other.
//
// grid       (ceil(group / 4), ceil(tokens / split_tokens), kv_heads), group = query_heads / kv_heads
// block      128
// shared     1,024 (2 kSteps + 1) stages + max(512 (2 kSteps + 1), 576 queries of a part) bytes; 70,656 for
//            head_dim 128 and 3 stages, so that a multiprocessor has three blocks
// registers  kSteps 4: 128, 5: 144, 6: 160, 8: 162, 12: 238, 16: 188 (sm_90a); 137, 146,
//            160, 164, 238, 188 (sm_80)
// bytes      read: 2 head_dim for each token and KV head, again for each block along x and each part; the
//            queries and their log-sum-exp for each split; written: 8 for each query head and token, 4 for
//            each KV head and token, for each part
// FLOP       2 query_heads window tokens head_dim on tensor cores, with all padded to whole steps and parts;
//            7 and an exponential for each logit where averages last (Decay)
template <Storage16 T, int kSteps>
__global__ void __launch_bounds__(kThreads, kSteps <= 8 ? 3 : 2)
    window_averages_kernel(WindowArguments<T> p, RingShape shape) {
  begin_dependent_launch();
  constexpr int kTiles = kPartTiles<kSteps>, kQueries = kPartQueries<kSteps>;
  SharedMemory memory;
  const RingShared shared(memory, shape);
  const Window<T>& window = p.window;
  const int64_t first = blockIdx.y * p.split_tokens;
  const auto count = static_cast<int>(min(p.split_tokens, window.tokens() - first));
  const int parts = static_cast<int>(ceil_division(window.size(), kQueries));
  RowRing<kSteps, kTileTokens> tiles({TokenRows(window.keys, blockIdx.z)}, first, count, parts, shared.ring,
                                     shape.stages);
  const int h = static_cast<int>(blockIdx.x * RingShared::kWarps) + warp();
  QueryPart part{blockIdx.z * window.group_size() + h, 0, h < window.group_size()};
  uint4* const memory_of_warp = shared.own + warp() * shape.own;
  auto* const logits = reinterpret_cast<float*>(memory_of_warp);
  const int64_t to = part.head * p.averages.capacity + first;
  // The number of the split's tokens that every query of the window sees.
  const auto seen_by_all = static_cast<int>(min(window.visible(0) - 1 - first, static_cast<int64_t>(count)));
  for (int n = 0; n < parts; ++n, part.first += kQueries) {
    RowFragments<kSteps, kTiles> queries;
    __syncwarp();  // no lane reads the previous part's scores any more
    queries.load(TokenRows(window.queries, part.exists ? part.head : 0), part.first,
                 part.exists ? window.size() : 0, memory_of_warp);
    float sums[2 * kTiles];
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const bool known = p.log_sum_exp && part.exists && part.place(i) < window.size();
      sums[i] = known ? p.log_sum_exp[part.head * window.size() + part.place(i)] : 0;
    }
    const auto rows = static_cast<int>(min(window.size() - part.first, int64_t{kQueries}));
    for (int token = 0; token < count;) {
      const uint4* keys = tiles.next();
      const int end = min(token + kTileTokens, count);
      if (!part.exists) token = end;
#pragma unroll 1
      for (; token < end; token += kAtOnce, keys += kAtOnce * PaddedRows<kSteps>::kStride) {
        __syncwarp();  // no lane reads the previous scores any more
#pragma unroll 1
        for (int sixteen = 0; sixteen < kAtOnce; sixteen += kRowsAtOnce)
          write_scores<T>(keys + sixteen * PaddedRows<kSteps>::kStride, queries, window.scale, sums,
                          logits + sixteen);
        __syncwarp();
        if (token + lane() >= end) continue;
        const int own = token + lane();
        const int from = max(own - seen_by_all - part.first, 0);
        observe_part(p.decay, p.averages, logits + lane(), from, rows, to + own,
                     h == 0 ? p.averages.weights + blockIdx.z * p.averages.capacity + first + own : nullptr,
                     n == 0);
      }
    }
  }
}

// Up to three tiles of shared memory; where it is short, fewer. Results are the same bits.
template <int kSteps>
RingShape ring_that_fits() {
  constexpr int kStride = PaddedRows<kSteps>::kStride;
  const auto with = [](int stages) {
    return RingShape{stages, kTileTokens * kStride,
                     std::max(kFragmentRows * kStride, kPartQueries<kSteps> * kLogitRow / 4)};
  };
  return first_that_fits<RingShared>({with(kMostRingStages), with(2), with(1)});
}

template <Storage16 T>
void launch_averages(WindowArguments<T> arguments, Stream stream) {
  const Window<T>& window = arguments.window;
  arguments.split_tokens = snap_kv_kernels::Splits(window.tokens()).tokens;
  with_row_steps(window.keys.cols, [&](auto steps) {
    if (window.size() > kPartQueries<steps>)
      arguments.split_tokens = std::min(arguments.split_tokens, kRereadTokens);
    const RingShape shape = ring_that_fits<steps>();
    launch_dependent<window_averages_kernel<T, steps>>(
        {extent(ceil_division(window.group_size(), int64_t{RingShared::kWarps}),
                ceil_division(window.tokens(), arguments.split_tokens), window.keys.slices),
         dim3(kThreads), shared_bytes<RingShared>(shape), stream},
        arguments, shape);
  });
}

// What turns averages into predictions.
struct Normaliser {
  ScoreAverages averages;
  const float* log_seen;  // [kv_heads]; null: it is exact

  Normaliser(const PredictedScores& options, const ScoreAverages& given, const float* log_seen_share)
      : averages(given), log_seen(options.normalisation == Normalisation::exact ? nullptr : log_seen_share) {}

  __device__ float log_divisor(int64_t g, float weight) const {
    return log_seen ? log_seen[g] : logf(weight);
  }
  __device__ float log_divisor(int64_t g, int64_t slot) const {
    return log_divisor(g, averages.weights[g * averages.capacity + slot]);
  }
  // ln s^
  __device__ static float prediction(const Average& average, float log_divisor) {
    return average.mantissa == 0 ? kNothing : average.exponent + (logf(average.mantissa) - log_divisor);
  }
};

struct ObserveArguments {
  const float* logits;
  const float* log_sum_exp;  // null: raw scores
  CacheSlots slots;
  int64_t group_size;
  Decay decay;
  Normaliser normaliser;
  float* predicted;  // null: not wanted
};

// The averages of one slot for all query heads of a KV head, and what they predict: a thread has one slot.
// Four heads' numbers are loaded before any is stored.
//
// grid       (ceil(capacity / 128), kv_heads)
// block      128; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read: 12 for each query head and entry, 4 for each KV head and entry; written: 8 or, with
//            predictions, 12 and 4 for each
// FLOP       6 and an exponential for each query head and entry; with predictions 2 and a logarithm more
__global__ void __launch_bounds__(kEach) observe_scores_kernel(ObserveArguments p) {
  begin_dependent_launch();
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, g = row_of_block();
  if (g >= p.slots.kv_heads || slot >= p.slots.entries[g]) return;
  const ScoreAverages& averages = p.normaliser.averages;
  const bool is_new = slot == p.slots.newest[g];
  float& stored_weight = averages.weights[g * averages.capacity + slot];
  const float weight = p.decay.weight(is_new ? 0 : stored_weight);
  const float log_divisor = p.predicted ? p.normaliser.log_divisor(g, weight) : 0;
  stored_weight = weight;
  for (int64_t first = g * p.group_size; first < (g + 1) * p.group_size; first += kHeadsAtATime) {
    const int64_t heads = min(int64_t{kHeadsAtATime}, (g + 1) * p.group_size - first);
    Average average[kHeadsAtATime];
    float number[kHeadsAtATime];
#pragma unroll
    for (int i = 0; i < kHeadsAtATime; ++i) {
      if (i >= heads) break;
      const int64_t place = (first + i) * averages.capacity + slot;
      average[i] = {kNothing, 0};
      if (!is_new) average[i] = {averages.exponents[place], averages.mantissas[place]};
      number[i] = p.logits[place] - (p.log_sum_exp ? p.log_sum_exp[first + i] : 0);
    }
#pragma unroll
    for (int i = 0; i < kHeadsAtATime; ++i) {
      if (i >= heads) break;
      const int64_t place = (first + i) * averages.capacity + slot;
      average[i].observe(p.decay, number[i]);
      averages.exponents[place] = average[i].exponent;
      averages.mantissas[place] = average[i].mantissa;
      if (p.predicted) p.predicted[place] = Normaliser::prediction(average[i], log_divisor);
    }
  }
}

struct PredictArguments {
  Normaliser normaliser;
  int64_t query_heads, group_size;
  const int64_t* count;
  float* predicted;
};

// ln s^ of one slot for one query head.
//
// grid       (ceil(capacity / 128), query_heads)
// block      128; no shared memory
// registers  20 (sm_90a and sm_80)
// bytes      read: 12 for each query head and entry; written: 4 for each
// FLOP       2 and two logarithms for each query head and entry
__global__ void __launch_bounds__(kEach) predicted_scores_kernel(PredictArguments p) {
  begin_dependent_launch();
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, head = row_of_block();
  const int64_t g = head / p.group_size;
  if (head >= p.query_heads || slot >= p.count[g]) return;
  const ScoreAverages& averages = p.normaliser.averages;
  const int64_t place = head * averages.capacity + slot;
  p.predicted[place] = Normaliser::prediction({averages.exponents[place], averages.mantissas[place]},
                                              p.normaliser.log_divisor(g, slot));
}

struct ReplaceArguments {
  Normaliser normaliser;
  int64_t query_heads, group_size;
  const float* log_scores;
  MergedEntries merged;
};

// The averages of one merged entry for one query head.
//
// grid       (ceil(clusters' capacity / 128), query_heads)
// block      128; no shared memory
// registers  20 (sm_90a and sm_80)
// bytes      read: 16 for each query head and kept entry, up to 20 for each query head and cluster; written:
//            8 for each query head and cluster
// FLOP       1 and a logarithm for each query head and cluster
__global__ void __launch_bounds__(kEach) replace_scores_kernel(ReplaceArguments p) {
  begin_dependent_launch();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, head = row_of_block();
  const Clusters& clusters = p.merged.clusters;
  const int64_t g = head / p.group_size;
  if (head >= p.query_heads || i >= clusters.capacity) return;
  const int64_t* const offsets = clusters.offsets + g * (clusters.capacity + 1) + i;
  if (offsets[0] == offsets[1]) return;
  const ScoreAverages& averages = p.normaliser.averages;
  const int64_t slot = p.merged.into ? p.merged.into[g * clusters.capacity + i] : i;
  if (averages.weights[g * averages.capacity + slot] == 0) return;  // a predicted score would have no weight
  const int64_t place = head * averages.capacity + slot;
  averages.exponents[place] = p.log_scores[head * clusters.capacity + i] + p.normaliser.log_divisor(g, slot);
  averages.mantissas[place] = 1;
}

bool is_normalised(const PredictedScores& options) {
  switch (options.scores) {
    case ScoreKind::attention:
      return true;
    case ScoreKind::raw:
      return false;
  }
  return false;
}

}  // namespace

float log_seen_share(const PredictedScores& options, int64_t tokens) {
  require_range("tokens", tokens, 1, INT64_MAX);
  return static_cast<float>(std::log(-std::expm1(static_cast<double>(tokens) * std::log(options.ema))));
}

template <Storage T>
int64_t prompt_averages_workspace(int64_t query_heads, int64_t kv_heads, int64_t window, int64_t tokens) {
  if (Storage16<T>) return 0;
  return query_heads / kv_heads * window * tokens * static_cast<int64_t>(sizeof(float));
}
template int64_t prompt_averages_workspace<float>(int64_t, int64_t, int64_t, int64_t);
template int64_t prompt_averages_workspace<Float16>(int64_t, int64_t, int64_t, int64_t);
template int64_t prompt_averages_workspace<Bfloat16>(int64_t, int64_t, int64_t, int64_t);

namespace {

// fp32: one KV head's group at a time. Its logits take 16 MiB for four heads, 32 queries and 32,768
// tokens, which the L2 cache of an A100 (40 MB) or an H100 (50 MB) has room for; those of longer prompts
// go through device memory.
void launch_averages_portable(const Window<float>& window, const float* log_sum_exp, const Decay& decay,
                              const ScoreAverages& averages, float* logits, Stream stream) {
  const int64_t group_size = window.group_size(), tokens = window.tokens();
  const Shape only(window.keys, 1, kQueryRows);
  const Shape shape = first_that_fits<LogitsShared>({only});
  for (int64_t g = 0; g < window.keys.slices; ++g) {
    launch_dependent<window_logits_kernel>({extent(ceil_division(tokens, kTileTokens), group_size),
                                            extent(kThreads), shared_bytes<LogitsShared>(shape), stream},
                                           window, g, logits, shape);
    launch_dependent<accumulate_kernel>(
        {extent(ceil_division(tokens, kEach), group_size), extent(kEach), 0, stream},
        AccumulateArguments{logits, log_sum_exp, g, group_size, window.size(), tokens, decay, averages});
  }
}

}  // namespace

template <Storage T>
void prompt_averages(const PredictedScores& options, const WindowView<T>& view, const float* log_sum_exp,
                     const ScoreAverages& averages, Workspace workspace, Stream stream) {
  require_window(view);
  require_range("capacity of the averages", averages.capacity, view.keys.rows, INT64_MAX);
  const Window<T> window(view);
  require_workspace(workspace, prompt_averages_workspace<T>(view.queries.slices, view.keys.slices,
                                                            window.size(), window.tokens()));
  const float* const sums = is_normalised(options) ? log_sum_exp : nullptr;
  if constexpr (Storage16<T>) {
    launch_averages(WindowArguments<T>{window, sums, Decay(options), averages, 0}, stream);
  } else {
    launch_averages_portable(window, sums, Decay(options), averages, static_cast<float*>(workspace.data),
                             stream);
  }
}

void observe_scores(const PredictedScores& options, const float* logits, const float* log_sum_exp,
                    const CacheSlots& slots, int64_t query_heads, const ScoreAverages& averages,
                    const float* log_seen, float* predicted, Stream stream) {
  require_groups(query_heads, slots.kv_heads);
  require_equal("capacity of the averages", averages.capacity, "capacity of the slots", slots.capacity);
  if (slots.capacity == 0) return;
  launch_dependent<observe_scores_kernel>(
      {extent_of_rows(ceil_division(slots.capacity, kEach), slots.kv_heads), extent(kEach), 0, stream},
      ObserveArguments{logits, is_normalised(options) ? log_sum_exp : nullptr, slots,
                       query_heads / slots.kv_heads, Decay(options), Normaliser(options, averages, log_seen),
                       predicted});
}

void predicted_scores(const PredictedScores& options, const ScoreAverages& averages, int64_t query_heads,
                      int64_t kv_heads, const int64_t* count, const float* log_seen, float* predicted,
                      Stream stream) {
  require_groups(query_heads, kv_heads);
  if (averages.capacity == 0) return;
  launch_dependent<predicted_scores_kernel>(
      {extent_of_rows(ceil_division(averages.capacity, kEach), query_heads), extent(kEach), 0, stream},
      PredictArguments{Normaliser(options, averages, log_seen), query_heads, query_heads / kv_heads, count,
                       predicted});
}

void replace_scores(const PredictedScores& options, const float* log_scores, const MergedEntries& merged,
                    int64_t query_heads, int64_t kv_heads, const float* log_seen,
                    const ScoreAverages& averages, Stream stream) {
  require_groups(query_heads, kv_heads);
  if (merged.clusters.capacity == 0) return;
  launch_dependent<replace_scores_kernel>(
      {extent_of_rows(ceil_division(merged.clusters.capacity, kEach), query_heads), extent(kEach), 0, stream},
      ReplaceArguments{Normaliser(options, averages, log_seen), query_heads, query_heads / kv_heads,
                       log_scores, merged});
}

template void prompt_averages(const PredictedScores&, const WindowView<float>&, const float*,
                              const ScoreAverages&, Workspace, Stream);
template void prompt_averages(const PredictedScores&, const WindowView<Float16>&, const float*,
                              const ScoreAverages&, Workspace, Stream);
template void prompt_averages(const PredictedScores&, const WindowView<Bfloat16>&, const float*,
                              const ScoreAverages&, Workspace, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
