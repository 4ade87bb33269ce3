#include "keep_kv.hpp"

#include <cmath>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kSumThreads = 256;
constexpr int kSumWarps = kSumThreads / 32;

struct DenominatorArguments {
  ScoredEntries entries;
  int64_t group_size;
  const int64_t* count;
  float* log_denominators;
};

struct DenominatorShared {
  float* by_warp;  // [kSumWarps]

  __host__ __device__ explicit DenominatorShared(SharedMemory& memory)
      : by_warp(memory.array<float>(kSumWarps)) {}
};

// ln D of one query head: a thread has the entries t, t + 256, ...
//
// grid       query_heads
// block      256
// shared     32 bytes
// registers  32 (sm_90a and sm_80)
// bytes      read: 4 for each query head and entry, and 4 for its votes, both a second time from the caches; written: 4
// FLOP       4, two logarithms and an exponential for each query head and entry
__global__ void __launch_bounds__(kSumThreads) log_denominators_kernel(DenominatorArguments p) {
  SharedMemory memory;
  const DenominatorShared shared(memory);
  const int64_t h = blockIdx.x, g = h / p.group_size;
  const auto logit = [&](int64_t j) {
    const float votes = p.entries.votes ? logf(p.entries.votes[g * p.entries.stride + j]) : 0;
    return p.entries.log_scores[h * p.entries.stride + j] + votes;
  };
  float largest = kNothing;
  for (int64_t j = threadIdx.x; j < p.count[g]; j += kSumThreads) largest = fmaxf(largest, logit(j));
  largest = block_max<kSumWarps>(largest, shared.by_warp);
  float sum = 0;
  for (int64_t j = threadIdx.x; largest > kNothing && j < p.count[g]; j += kSumThreads) {
    sum += expf(logit(j) - largest);
  }
  sum = block_sum<kSumWarps>(sum, shared.by_warp);
  if (threadIdx.x == 0) p.log_denominators[h] = sum > 0 ? largest + logf(sum) : kNothing;
}

}  // namespace

void log_denominators(const ScoredEntries& entries, int64_t query_heads, int64_t kv_heads,
                      const int64_t* count, float* log_denominators, Stream stream) {
  require_groups(query_heads, kv_heads);
  launch<log_denominators_kernel>(
      {extent(query_heads), extent(kSumThreads), shared_bytes<DenominatorShared>(), stream},
      DenominatorArguments{entries, query_heads / kv_heads, count, log_denominators});
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
