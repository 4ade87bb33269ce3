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
constexpr int kInFlight = 8;  // entries of a thread, whose loads are

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

// Calls work(z) for the logits z of all entries of a query head that the thread has, in their
// order: t, t + 256, ... The loads of eight are begun before one is waited for; behind the last
// entry logits are kNothing.
template <class Work>
__device__ __forceinline__ void each_logit(const DenominatorArguments& p, int64_t h, const Work& work) {
  const int64_t g = h / p.group_size;
  const auto count = static_cast<int>(p.count[g]);
  const float* const scores = p.entries.log_scores + h * p.entries.stride;
  const float* const votes = p.entries.votes ? p.entries.votes + g * p.entries.stride : nullptr;
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kInFlight * kSumThreads) {
    float logits[kInFlight], votes_of[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int j = first + i * kSumThreads;
      logits[i] = j < count ? scores[j] : kNothing;
      votes_of[i] = votes && j < count ? votes[j] : 1;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) work(logits[i] + (votes ? logf(votes_of[i]) : 0));
  }
}

// ln D of one query head: a thread has the entries t, t + 256, ...
//
// grid       query_heads
// block      256
// shared     32 bytes
// registers  39 (sm_90a and sm_80)
// bytes      read: 4 for each query head and entry, and 4 for its votes, both a second time
//            from the caches; written: 4
// FLOP       4, two logarithms and an exponential for each query head and entry
__global__ void __launch_bounds__(kSumThreads) log_denominators_kernel(DenominatorArguments p) {
  SharedMemory memory;
  const DenominatorShared shared(memory);
  const int64_t h = blockIdx.x;
  float largest = kNothing;
  each_logit(p, h, [&](float z) { largest = fmaxf(largest, z); });
  largest = block_max<kSumWarps>(largest, shared.by_warp);
  float sum = 0;
  if (largest > kNothing) each_logit(p, h, [&](float z) { sum += expf(z - largest); });
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
