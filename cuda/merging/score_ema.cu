#include "score_ema.hpp"

#include <cmath>

#include <kvbound/cuda/eviction/window_check.hpp>
#include <kvbound/cuda/eviction/window_tiles.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace window_tiles;

constexpr int kRows = 4;
constexpr int kQueryRows = kRows * kRowLanes;
constexpr int kEach = 128;

// A mantissa below this limit is moved into its exponent, so that no exponential underflows that would change the sum.
constexpr float kLeastMantissa = 0x1p-64f;

struct LogitsShared {
  uint4* tile;     // keys
  float* queries;  // [kQueryRows, query_row]

  __host__ __device__ LogitsShared(SharedMemory& memory, const Shape& shape)
      : tile(memory.array<uint4>(tile_vectors(shape.vectors))),
        queries(memory.array<float>(shape.query_rows * shape.query_row)) {}
};

// The logits of one query head's window for a tile of 64 tokens; those of tokens in a query's future are written, too.
//
// grid       (ceil(tokens / 64), group), group = query_heads / kv_heads
// block      128
// shared     1024 (v | 1) + 128 (row + 4) bytes, with v vectors of 16 bytes and `row` numbers in a padded row
// registers  95-96 (sm_90a), 96-100 (sm_80)
// bytes      read: 16 v for each token and query head, and the queries for each block; written: 4 for each logit
// FLOP       2 window tokens head_dim for each query head
template <Storage T>
__global__ void __launch_bounds__(kThreads, 4)
    window_logits_kernel(Window<T> window, int64_t g, float* logits, Shape shape) {
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
    const Products<T, kRows> products(shared.tile, shared.queries, shape, window.scale);
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

  explicit Decay(const PredictedScores& options)
      : factor(static_cast<float>(options.ema)),
        log_factor(static_cast<float>(std::log(options.ema))),
        fresh(static_cast<float>(1 - options.ema)),
        forgets(options.ema == 0) {}

  // c' = a c + (1 - a)
  __device__ float weight(float past) const { return factor * past + fresh; }
};

// One average.
struct Average {
  float exponent, mantissa;

  // S' = a S + (1 - a) e^number, with the larger of both exponents. A factor below 2^-60 goes into the past's exponent: its
  // product with a mantissa might underflow, though the past outweighs the number.
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

// The averages of one query head's scores of a token: a thread takes in the queries that see its token, in their order.
//
// grid       (ceil(tokens / 128), group)
// block      128; no shared memory
// registers  30 (sm_90a and sm_80)
// bytes      read: 4 for each logit, and the log-sum-exp for each block; written: 8 for each query head and token, 4 for
//            each KV head and token
// FLOP       6 and an exponential for each logit
__global__ void __launch_bounds__(kEach) accumulate_kernel(AccumulateArguments p) {
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

struct ObserveArguments {
  const float* logits;
  const float* log_sum_exp;  // null: raw scores
  CacheSlots slots;
  int64_t group_size;
  Decay decay;
  ScoreAverages averages;
};

// The averages of one slot for all query heads of a KV head: a thread has one slot.
//
// grid       (ceil(capacity / 128), kv_heads)
// block      128; no shared memory
// registers  28 (sm_90a), 26 (sm_80)
// bytes      read: 12 for each query head and entry, 4 for each KV head and entry; written: 8 and 4 for each
// FLOP       6 and an exponential for each query head and entry
__global__ void __launch_bounds__(kEach) observe_scores_kernel(ObserveArguments p) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, g = blockIdx.y;
  if (slot >= p.slots.entries[g]) return;
  const bool is_new = slot == p.slots.newest[g];
  for (int64_t h = g * p.group_size; h < (g + 1) * p.group_size; ++h) {
    const int64_t place = h * p.averages.capacity + slot;
    Average average{kNothing, 0};
    if (!is_new) average = {p.averages.exponents[place], p.averages.mantissas[place]};
    average.observe(p.decay, p.logits[place] - (p.log_sum_exp ? p.log_sum_exp[h] : 0));
    p.averages.exponents[place] = average.exponent;
    p.averages.mantissas[place] = average.mantissa;
  }
  float& weight = p.averages.weights[g * p.averages.capacity + slot];
  weight = p.decay.weight(is_new ? 0 : weight);
}

// What turns averages into predictions.
struct Normaliser {
  ScoreAverages averages;
  const float* log_seen;  // null: it is exact

  Normaliser(const PredictedScores& options, const ScoreAverages& given, const float* log_seen_share)
      : averages(given), log_seen(options.normalisation == Normalisation::exact ? nullptr : log_seen_share) {}

  __device__ float log_divisor(int64_t g, int64_t slot) const {
    return log_seen ? *log_seen : logf(averages.weights[g * averages.capacity + slot]);
  }
};

struct PredictArguments {
  Normaliser normaliser;
  int64_t group_size;
  const int64_t* count;
  float* predicted;
};

// ln s^ of one slot for one query head.
//
// grid       (ceil(capacity / 128), query_heads)
// block      128; no shared memory
// registers  20 (sm_90a), 18 (sm_80)
// bytes      read: 12 for each query head and entry; written: 4 for each
// FLOP       2 and two logarithms for each query head and entry
__global__ void __launch_bounds__(kEach) predicted_scores_kernel(PredictArguments p) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, head = blockIdx.y;
  const int64_t g = head / p.group_size;
  if (slot >= p.count[g]) return;
  const ScoreAverages& averages = p.normaliser.averages;
  const int64_t place = head * averages.capacity + slot;
  const float mantissa = averages.mantissas[place];
  p.predicted[place] = mantissa == 0
                           ? kNothing
                           : averages.exponents[place] + (logf(mantissa) - p.normaliser.log_divisor(g, slot));
}

struct ReplaceArguments {
  Normaliser normaliser;
  int64_t group_size;
  const float* log_scores;
  MergedEntries merged;
};

// The averages of one merged entry for one query head.
//
// grid       (ceil(clusters' capacity / 128), query_heads)
// block      128; no shared memory
// registers  20 (sm_90a), 18 (sm_80)
// bytes      read: 16 for each query head and kept entry, up to 20 for each query head and cluster; written: 8 for each query
//            head and cluster
// FLOP       1 and a logarithm for each query head and cluster
__global__ void __launch_bounds__(kEach) replace_scores_kernel(ReplaceArguments p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x, head = blockIdx.y;
  const Clusters& clusters = p.merged.clusters;
  const int64_t g = head / p.group_size;
  if (i >= clusters.capacity) return;
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

int64_t prompt_averages_workspace(int64_t query_heads, int64_t kv_heads, int64_t window, int64_t tokens) {
  return query_heads / kv_heads * window * tokens * static_cast<int64_t>(sizeof(float));
}

template <Storage T>
void prompt_averages(const PredictedScores& options, const WindowView<T>& view, const float* log_sum_exp,
                     const ScoreAverages& averages, Workspace workspace, Stream stream) {
  require_window(view);
  require_range("capacity of the averages", averages.capacity, view.keys.rows, INT64_MAX);
  const Window<T> window(view);
  const int64_t kv_heads = view.keys.slices, group_size = window.group_size(), tokens = window.tokens();
  require_workspace(workspace,
                    prompt_averages_workspace(view.queries.slices, kv_heads, window.size(), tokens));
  auto* const logits = static_cast<float*>(workspace.data);
  const Shape only(view.keys, 1, kQueryRows);
  const Shape shape = first_that_fits<LogitsShared>({only});
  // One KV head's group at a time: its logits take 16 MiB for four heads, 32 queries and 32,768 tokens, which the L2
  // cache of an A100 (40 MB) or an H100 (50 MB) has room for; those of longer prompts go through device memory.
  for (int64_t g = 0; g < kv_heads; ++g) {
    launch<window_logits_kernel<T>>({extent(ceil_division(tokens, kTileTokens), group_size), extent(kThreads),
                                     shared_bytes<LogitsShared>(shape), stream},
                                    window, g, logits, shape);
    launch<accumulate_kernel>(
        {extent(ceil_division(tokens, kEach), group_size), extent(kEach), 0, stream},
        AccumulateArguments{logits, is_normalised(options) ? log_sum_exp : nullptr, g, group_size,
                            window.size(), tokens, Decay(options), averages});
  }
}

void observe_scores(const PredictedScores& options, const float* logits, const float* log_sum_exp,
                    const CacheSlots& slots, int64_t query_heads, const ScoreAverages& averages,
                    Stream stream) {
  require_groups(query_heads, slots.kv_heads);
  require_equal("capacity of the averages", averages.capacity, "capacity of the slots", slots.capacity);
  if (slots.capacity == 0) return;
  launch<observe_scores_kernel>(
      {extent(ceil_division(slots.capacity, kEach), slots.kv_heads), extent(kEach), 0, stream},
      ObserveArguments{logits, is_normalised(options) ? log_sum_exp : nullptr, slots,
                       query_heads / slots.kv_heads, Decay(options), averages});
}

void predicted_scores(const PredictedScores& options, const ScoreAverages& averages, int64_t query_heads,
                      int64_t kv_heads, const int64_t* count, const float* log_seen, float* predicted,
                      Stream stream) {
  require_groups(query_heads, kv_heads);
  if (averages.capacity == 0) return;
  launch<predicted_scores_kernel>(
      {extent(ceil_division(averages.capacity, kEach), query_heads), extent(kEach), 0, stream},
      PredictArguments{Normaliser(options, averages, log_seen), query_heads / kv_heads, count, predicted});
}

void replace_scores(const PredictedScores& options, const float* log_scores, const MergedEntries& merged,
                    int64_t query_heads, int64_t kv_heads, const float* log_seen,
                    const ScoreAverages& averages, Stream stream) {
  require_groups(query_heads, kv_heads);
  if (merged.clusters.capacity == 0) return;
  launch<replace_scores_kernel>(
      {extent(ceil_division(merged.clusters.capacity, kEach), query_heads), extent(kEach), 0, stream},
      ReplaceArguments{Normaliser(options, averages, log_seen), query_heads / kv_heads, log_scores, merged});
}

template void prompt_averages(const PredictedScores&, const WindowView<float>&, const float*,
                              const ScoreAverages&, Workspace, Stream);
template void prompt_averages(const PredictedScores&, const WindowView<Float16>&, const float*,
                              const ScoreAverages&, Workspace, Stream);
template void prompt_averages(const PredictedScores&, const WindowView<Bfloat16>&, const float*,
                              const ScoreAverages&, Workspace, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
