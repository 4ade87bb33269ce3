#include "keep_kv.hpp"

#include <cmath>
#include <limits>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kSumThreads = 256;
constexpr int kSumWarps = kSumThreads / 32;
constexpr int kWarps = 4;

__device__ bool is_finite(float number) { return fabsf(number) <= std::numeric_limits<float>::max(); }

// A sum of exponentials, as its largest term's logarithm and a multiple of that term.
struct LogSum {
  float largest, sum;

  __device__ float log() const { return sum > 0 ? largest + logf(sum) : kNothing; }
};

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
  if (threadIdx.x == 0) p.log_denominators[h] = LogSum{largest, sum}.log();
}

struct WeightArguments {
  ScoredEntries entries;
  int64_t group_size;
  const float* log_denominators;
  MergedEntries merged;
  ClusterWeights weights;
  MergedNumbers numbers;
  MergedVotes votes;
  int* status;
};

// One cluster: its member 0 is the kept entry. A lane has the members l, l + 32, ...
struct Cluster {
  const WeightArguments& p;
  int64_t g, i;
  int64_t first, count;  // place of member 1; number of members, the kept entry included

  __device__ Cluster(const WeightArguments& arguments, int64_t kv_head, int64_t kept)
      : p(arguments), g(kv_head), i(kept), first(0), count(0) {
    if (i >= p.merged.clusters.capacity) return;
    const int64_t* const offsets = p.merged.clusters.offsets + g * (p.merged.clusters.capacity + 1) + i;
    first = offsets[0];
    count = offsets[1] > first ? offsets[1] - first + 1 : 0;
  }

  template <class Work>
  __device__ void each(const Work& work) const {
    for (int64_t m = lane(); m < count; m += 32) work(m);
  }

  __device__ int64_t entry(int64_t m) const {
    if (m == 0) return p.merged.kept.positions[g * p.merged.kept.stride + i];
    return p.merged.clusters.members[g * p.merged.clusters.stride + first + m - 1];
  }
  __device__ float votes(int64_t m) const {
    return p.entries.votes ? p.entries.votes[g * p.entries.stride + entry(m)] : 1;
  }
  // ln s^ of one query head of the group.
  __device__ float score_of(int64_t head, int64_t m) const {
    return p.entries.log_scores[(g * p.group_size + head) * p.entries.stride + entry(m)];
  }
  // ln s^ by which the members are weighted: of a query head, or the mean of all.
  __device__ float score(int64_t row, int64_t m) const {
    if (p.weights.rows > 1) return score_of(row, m);
    float sum = 0;
    for (int64_t head = 0; head < p.group_size; ++head) sum += score_of(head, m);
    return sum / static_cast<float>(p.group_size);
  }
  __device__ float& weight(int64_t row, int64_t m) const {
    const int64_t weights = g * p.weights.rows + row;
    return m == 0 ? p.weights.kept[weights * p.merged.clusters.capacity + i]
                  : p.weights.members[weights * p.merged.clusters.stride + first + m - 1];
  }
  __device__ float& number(float* numbers, int64_t row) const {
    return numbers[(g * p.weights.rows + row) * p.merged.clusters.capacity + i];
  }

  __device__ float all_votes() const {
    float sum = 0;
    each([&](int64_t m) { sum += votes(m); });
    return warp_sum(sum);
  }
  // ln sum_j p_j s_j
  template <class Score>
  __device__ LogSum log_sum(const Score& score) const {
    LogSum result{kNothing, 0};
    each([&](int64_t m) { result.largest = fmaxf(result.largest, logf(votes(m)) + score(m)); });
    result.largest = warp_max(result.largest);
    each([&](int64_t m) { result.sum += expf(logf(votes(m)) + score(m) - result.largest); });
    result.sum = warp_sum(result.sum);
    return result;
  }
  __device__ void report(bool is_sound) const {
    if (!is_sound && lane() == 0) *p.status = 1;  // several warps may write, all of them 1
  }
};

// -ln sum_j (p_j / P) exp(x_j) for scores x with weighted mean 0. Near x = 0 it is formed from expm1, without cancellation.
__device__ float divergence(const Cluster& cluster, int64_t row, float first, float middle, float all_votes) {
  float below = 0, whole = 0;
  cluster.each([&](int64_t m) {
    const float centred = cluster.score(row, m) - first - middle, share = cluster.votes(m) / all_votes;
    below += share * expm1f(centred);
    whole += share * expf(centred);
  });
  below = warp_sum(below);
  whole = warp_sum(whole);
  const float result = below > -0.5f ? -log1pf(below) : -logf(whole);
  cluster.report(is_finite(result));
  return fmaxf(result, 0.0f);
}

// z* / m = 1 - KL / m.
__device__ uint8_t form_zip_scale(const Cluster& cluster, float divergence, float mean_score) {
  float most = 0;
  cluster.each([&](int64_t m) { most = fmaxf(most, fabsf(cluster.score(0, m))); });
  most = warp_max(most);
  float scale = 1;
  uint8_t outcome = 0;
  if (divergence > 0 && fabsf(mean_score) <= static_cast<float>(kSingularZip) * most) {
    outcome = kSingular;
  } else if (divergence > 0) {
    scale = 1 - divergence / mean_score;
    if (scale < 0) outcome |= kNegative;
    if (!(scale >= 0.5f && scale <= 1.5f)) outcome |= kFar;
  }
  if (lane() == 0) cluster.number(cluster.p.numbers.zip_scales, 0) = scale;
  return outcome;
}

// The weights of one cluster by one row of scores. Returns what ZIP's scale is.
__device__ uint8_t weigh(const Cluster& cluster, int64_t row, float all_votes) {
  const WeightArguments& p = cluster.p;
  const LogSum sum = cluster.log_sum([&](int64_t m) { return cluster.score(row, m); });
  const float first = cluster.score(row, 0);
  float middle = 0;
  cluster.each([&](int64_t m) {
    const float score = cluster.score(row, m);
    const float weight = expf(logf(cluster.votes(m)) + score - sum.largest) / sum.sum;
    cluster.weight(row, m) = weight;
    middle += weight * (score - first);  // exactly 0 where scores are equal
  });
  middle = warp_sum(middle);
  const float apart = divergence(cluster, row, first, middle, all_votes);
  if (lane() == 0) {
    cluster.number(p.numbers.divergences, row) = apart;
    const int64_t head = cluster.g * p.weights.rows + row;
    cluster.number(p.numbers.shares, row) =
        p.weights.rows > 1 ? 2 * (sum.log() - p.log_denominators[head]) : 0;
  }
  return p.numbers.zip_scales ? form_zip_scale(cluster, apart, first + middle) : 0;
}

// Turns the logarithms of the heads' shares into shares of sum 1.
__device__ void normalise_shares(const Cluster& cluster) {
  const WeightArguments& p = cluster.p;
  float largest = kNothing, sum = 0;
  for (int64_t row = 0; row < p.weights.rows; ++row) {
    largest = fmaxf(largest, cluster.number(p.numbers.shares, row));
  }
  for (int64_t row = 0; row < p.weights.rows; ++row) {
    sum += expf(cluster.number(p.numbers.shares, row) - largest);
  }
  for (int64_t row = 0; row < p.weights.rows; ++row) {
    float& share = cluster.number(p.numbers.shares, row);
    share = expf(share - largest) / sum;
  }
}

// The predicted scores and votes of the merged entry.
__device__ void put_numbers(const Cluster& cluster, float all_votes) {
  const WeightArguments& p = cluster.p;
  const int64_t capacity = p.merged.clusters.capacity;
  for (int64_t head = 0; head < p.group_size; ++head) {
    const LogSum sum = cluster.log_sum([&](int64_t m) { return cluster.score_of(head, m); });
    if (lane() > 0) continue;
    p.numbers.log_scores[(cluster.g * p.group_size + head) * capacity + cluster.i] =
        sum.log() - logf(all_votes);
  }
  if (!p.votes.votes) return;
  __syncwarp();  // all lanes have read the members' votes
  if (lane() > 0) return;
  const int64_t place = cluster.g * capacity + cluster.i;
  const int64_t into = cluster.g * p.votes.stride + (p.merged.into ? p.merged.into[place] : cluster.i);
  p.votes.votes[into] = all_votes;
  p.votes.log_votes[into] = logf(all_votes);
}

// The weights of one cluster: a warp has one kept entry.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128; no shared memory
// registers  109 (sm_90a), 110 (sm_80)
// bytes      read: for each merging entry 8, 4 for its votes and 4 for each query head, from the caches again for each pass
//            and query head; written: 4 for each row of weights and merging entry, 8 for each cluster and row, 4 for each
//            cluster and query head, up to 13 for each cluster
// FLOP       about 30 with four exponentials for each row of weights and merging entry
__global__ void __launch_bounds__(kWarps * 32, 4) cluster_weights_kernel(WeightArguments p) {
  const Cluster cluster(p, blockIdx.y, static_cast<int64_t>(blockIdx.x) * kWarps + warp());
  if (cluster.i >= p.merged.clusters.capacity) return;
  uint8_t outcome = 0;
  if (cluster.count > 0) {
    const float all_votes = cluster.all_votes();
    for (int64_t row = 0; row < p.weights.rows; ++row) outcome |= weigh(cluster, row, all_votes);
    if (lane() == 0) normalise_shares(cluster);
    put_numbers(cluster, all_votes);
  }
  if (lane() > 0 || !p.numbers.zip_outcomes) return;
  p.numbers.zip_outcomes[cluster.g * p.merged.clusters.capacity + cluster.i] = outcome;
}

}  // namespace

void log_denominators(const ScoredEntries& entries, int64_t query_heads, int64_t kv_heads,
                      const int64_t* count, float* log_denominators, Stream stream) {
  require_groups(query_heads, kv_heads);
  launch<log_denominators_kernel>(
      {extent(query_heads), extent(kSumThreads), shared_bytes<DenominatorShared>(), stream},
      DenominatorArguments{entries, query_heads / kv_heads, count, log_denominators});
}

void cluster_weights(const KeyRule& rule, const ScoredEntries& entries, int64_t query_heads, int64_t kv_heads,
                     const float* log_denominators, const MergedEntries& merged,
                     const ClusterWeights& weights, const MergedNumbers& numbers, const MergedVotes& votes,
                     int* status, Stream stream) {
  require_groups(query_heads, kv_heads);
  const int64_t group_size = query_heads / kv_heads;
  require_equal("rows of weights", weights.rows, "rows that the rule weights by",
                merging_rows(rule.gqa, group_size));
  if (merged.clusters.capacity == 0) return;
  launch<cluster_weights_kernel>(
      {extent(ceil_division(merged.clusters.capacity, kWarps), kv_heads), extent(kWarps * 32), 0, stream},
      WeightArguments{entries, group_size, log_denominators, merged, weights, numbers, votes, status});
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
