#include "theta_sweep.hpp"

#include <cmath>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kScoreThreads = 128;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

struct Shared {
  float* totals;  // [kWarps]

  __host__ __device__ explicit Shared(SharedMemory& memory) : totals(memory.array<float>(kWarps)) {}
};

// The mean of one query head's norms.
//
// grid       query_heads
// block      512
// shared     64 bytes
// registers  31 (sm_90a and sm_80)
// bytes      read: 4 query_heads tokens; written: 4 query_heads
// FLOP       query_heads tokens
__global__ void __launch_bounds__(kThreads)
    mean_norms_kernel(const float* norms, int64_t tokens, float* means) {
  SharedMemory memory;
  const Shared shared(memory);
  float sum = 0;
  for (int64_t j = threadIdx.x; j < tokens; j += kThreads) sum += norms[blockIdx.x * tokens + j];
  sum = block_sum<kWarps>(sum, shared.totals);
  if (threadIdx.x == 0) means[blockIdx.x] = sum / static_cast<float>(tokens);
}

// The score of one candidate for one KV head: a thread adds the query heads of the group in their order.
//
// grid       (ceil(candidates / 128), kv_heads)
// block      128; no shared memory
// registers  42 (sm_90a and sm_80)
// bytes      read: 8 query_heads candidates; written: 4 kv_heads candidates
// FLOP       4 query_heads candidates
__global__ void __launch_bounds__(kScoreThreads, 8)
    sweep_scores_kernel(ThetaSweepInput input, const float* means, float lambda, float* scores) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kScoreThreads + threadIdx.x;
  if (j >= input.candidates) return;
  const int64_t g = blockIdx.y, group_size = input.query_heads / input.kv_heads;
  float sum = 0;
  for (int64_t h = g * group_size; h < (g + 1) * group_size; ++h) {
    const int64_t place = h * input.tokens + input.first_candidate + j;
    const float relative = means[h] > 0 ? input.norms[place] / means[h] : 0;
    sum += input.weights[place] * (lambda == -kNothing ? 1 : lambda + relative);
  }
  scores[g * input.candidates + j] = sum / static_cast<float>(group_size);
}

struct BetterArguments {
  ThetaSweepInput input;
  const int64_t* positions;
  const int64_t* k;
  BestSelection best;
  uint8_t* kept;  // [kv_heads, tokens]: whether a token is kept
};

// Marks the tokens that are kept: all that are no candidates, and the selected ones. All threads call it.
__device__ void mark(const BetterArguments& p, int64_t g, uint8_t* kept) {
  const int64_t first = p.input.first_candidate, last = first + p.input.candidates;
  for (int64_t j = threadIdx.x; j < p.input.tokens; j += kThreads) kept[j] = j < first || j >= last;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < p.k[g]; i += kThreads) kept[p.positions[g * p.best.stride + i]] = 1;
  __syncthreads();
}

// One query head's bound.
__device__ float theta(const BetterArguments& p, int64_t head, const uint8_t* kept, const Shared& shared) {
  float kept_mass = 0, kept_norms = 0, evicted_mass = 0, evicted_norms = 0;
  for (int64_t j = threadIdx.x; j < p.input.tokens; j += kThreads) {
    const float weight = p.input.weights[head * p.input.tokens + j];
    const float product = weight * p.input.norms[head * p.input.tokens + j];
    (kept[j] ? kept_mass : evicted_mass) += weight;
    (kept[j] ? kept_norms : evicted_norms) += product;
  }
  kept_mass = block_sum<kWarps>(kept_mass, shared.totals);
  kept_norms = block_sum<kWarps>(kept_norms, shared.totals);
  evicted_mass = block_sum<kWarps>(evicted_mass, shared.totals);
  evicted_norms = block_sum<kWarps>(evicted_norms, shared.totals);
  if (!(kept_mass > 0)) return -kNothing;
  return evicted_norms + evicted_mass / kept_mass * kept_norms;
}

// The bound of one KV head's selection, which replaces the best one if it is the first
// or its bound is smaller.
//
// grid       kv_heads
// block      512
// shared     64 bytes
// registers  42 (sm_90a), 60 (sm_80)
// bytes      read: 8 query_heads tokens, 8 k and the marks again for each query head; written:
//            kv_heads tokens, and up to 8 k
// FLOP       3 query_heads tokens
__global__ void __launch_bounds__(kThreads) keep_better_kernel(BetterArguments p) {
  SharedMemory memory;
  const Shared shared(memory);
  const int64_t g = blockIdx.x, group_size = p.input.query_heads / p.input.kv_heads;
  uint8_t* kept = p.kept + g * p.input.tokens;
  mark(p, g, kept);
  float total = 0;
  for (int64_t h = g * group_size; h < (g + 1) * group_size; ++h) total += theta(p, h, kept, shared);
  const float best = p.best.bounds[g];
  __syncthreads();
  if (best >= 0 && !(total < best)) return;
  for (int64_t i = threadIdx.x; i < p.k[g]; i += kThreads) {
    p.best.positions[g * p.best.stride + i] = p.positions[g * p.best.stride + i];
  }
  if (threadIdx.x == 0) p.best.bounds[g] = total;
}

void require_valid(const ThetaSweepInput& input) {
  require_groups(input.query_heads, input.kv_heads);
  require_range("tokens", input.tokens, 1, INT32_MAX);
  require_range("first_candidate", input.first_candidate, 0, input.tokens);
  require_range("candidates", input.candidates, 0, input.tokens - input.first_candidate);
}

}  // namespace

void mean_norms(const ThetaSweepInput& input, float* means, Stream stream) {
  require_valid(input);
  launch<mean_norms_kernel>({extent(input.query_heads), extent(kThreads), shared_bytes<Shared>(), stream},
                            input.norms, input.tokens, means);
}

void sweep_scores(const ThetaSweepInput& input, const float* means, double lambda, float* scores,
                  Stream stream) {
  require_valid(input);
  if (input.candidates == 0) return;
  launch<sweep_scores_kernel>({extent(ceil_division(input.candidates, kScoreThreads), input.kv_heads),
                               extent(kScoreThreads), 0, stream},
                              input, means, static_cast<float>(lambda), scores);
}

int64_t keep_better_workspace(int64_t kv_heads, int64_t tokens) { return kv_heads * tokens; }

void keep_better(const ThetaSweepInput& input, const int64_t* positions, const int64_t* k,
                 const BestSelection& best, Workspace workspace, Stream stream) {
  require_valid(input);
  require_workspace(workspace, keep_better_workspace(input.kv_heads, input.tokens));
  const BetterArguments arguments{input, positions, k, best, static_cast<uint8_t*>(workspace.data)};
  launch<keep_better_kernel>({extent(input.kv_heads), extent(kThreads), shared_bytes<Shared>(), stream},
                             arguments);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
