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
  WeightLayout of_kept, of_members;
};

// One entry of a cluster.
struct Member {
  int entry = 0;
  float votes = 1, log_votes = 0;
};

// One cluster: its member 0 is the kept entry. Its warp has several rows of scores at a time, each of them by as many lanes as
// a small cluster has members, or by all 32.
//
//     a cluster of 5 members
//     lanes  0 .. 7                  8 .. 15                16 .. 23     24 .. 31
//            members 0 .. 4, row 0   members 0 .. 4, row 1  row 2        row 3
struct Cluster {
  const WeightArguments& p;
  int64_t g, i;
  int64_t first;  // place of member 1
  int count;      // members, the kept entry included; 0: none
  int lanes;      // of a row: a power of two
  Member own;     // the lane's first one

  __device__ Cluster(const WeightArguments& arguments, int64_t kv_head, int64_t kept)
      : p(arguments), g(kv_head), i(kept), first(0), count(0), lanes(1) {
    const int64_t* const offsets = p.merged.clusters.offsets + g * (p.merged.clusters.capacity + 1) + i;
    first = offsets[0];
    count = offsets[1] > first ? static_cast<int>(offsets[1] - first) + 1 : 0;
    while (lanes < min(count, 32)) lanes *= 2;
    if (lane_of_row() < count) own = member(lane_of_row());
  }

  __device__ int lane_of_row() const { return lane() & (lanes - 1); }
  // The calling lane's row among those that the warp has at a time.
  __device__ int row_of_lane() const { return lane() / lanes; }
  __device__ int rows_at_once() const { return 32 / lanes; }
  __device__ bool is_first_of_row() const { return lane_of_row() == 0; }

  __device__ Member member(int m) const {
    const int64_t* const position =
        m == 0 ? p.merged.kept.positions + g * p.merged.kept.stride + i
               : p.merged.clusters.members + g * p.merged.clusters.stride + first + m - 1;
    Member result{static_cast<int>(*position)};
    if (!p.entries.votes) return result;
    result.votes = p.entries.votes[g * p.entries.stride + result.entry];
    result.log_votes = logf(result.votes);
    return result;
  }

  // Calls work(m, member) for the lane's members. The first one is known.
  template <class Work>
  __device__ void each(const Work& work) const {
    if (lane_of_row() >= count) return;
    work(lane_of_row(), own);
    for (int m = lane_of_row() + lanes; m < count; m += lanes) work(m, member(m));
  }
  // Joins the numbers of a row's lanes, all of which return the same. The whole warp calls it.
  template <class Number, class Join>
  __device__ Number join(Number number, const Join& joined) const {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      number = joined(number, __shfl_xor_sync(kAllLanes, number, distance));
    }
    return number;
  }
  __device__ float sum(float number) const { return join(number, Sum()); }
  __device__ float largest(float number) const { return join(number, Larger()); }
  // The kept entry's number of the lane's row. The whole warp calls it.
  __device__ float of_kept(float number) const {
    return __shfl_sync(kAllLanes, number, lane() - lane_of_row());
  }

  // ln s^ of one query head of the group.
  __device__ float score_of(int head, int entry) const {
    return p.entries.log_scores[(g * p.group_size + head) * p.entries.stride + entry];
  }
  // ln s^ by which the members are weighted: of a query head, or the mean of all.
  __device__ float score(int row, int entry) const {
    if (p.weights.rows > 1) return score_of(row, entry);
    float sum = 0;
    for (int head = 0; head < p.group_size; ++head) sum += score_of(head, entry);
    return sum / static_cast<float>(p.group_size);
  }
  __device__ float& weight(int row, int m) const {
    return m == 0 ? p.weights.kept[p.of_kept.place(row, g, i)]
                  : p.weights.members[p.of_members.place(row, g, first + m - 1)];
  }
  __device__ float& number(float* numbers, int row) const { return numbers[p.of_kept.place(row, g, i)]; }
  __device__ float& log_score(int head) const {
    return p.numbers.log_scores[(g * p.group_size + head) * p.merged.clusters.capacity + i];
  }
  __device__ void report(bool is_sound) const {
    if (!is_sound && is_first_of_row()) *p.status = 1;  // several warps may write, all of them 1
  }
};

// The scores of a cluster's members by which a row's lanes weight them, or by one query head.
template <class Score>
struct RowScores {
  const Cluster& cluster;
  Score score_of_entry;
  float own;  // of the lane's first member

  __device__ RowScores(const Cluster& members, const Score& score)
      : cluster(members),
        score_of_entry(score),
        own(cluster.lane_of_row() < cluster.count ? score(cluster.own.entry) : 0) {}

  // Calls work(m, member, score) for the lane's members.
  template <class Work>
  __device__ void each(const Work& work) const {
    cluster.each([&](int m, const Member& member) {
      work(m, member, m == cluster.lane_of_row() ? own : score_of_entry(member.entry));
    });
  }

  // ln sum_j p_j s_j
  __device__ LogSum log_sum() const {
    LogSum result{kNothing, 0};
    each([&](int, const Member& member, float score) {
      result.largest = fmaxf(result.largest, member.log_votes + score);
    });
    result.largest = cluster.largest(result.largest);
    each([&](int, const Member& member, float score) {
      result.sum += expf(member.log_votes + score - result.largest);
    });
    result.sum = cluster.sum(result.sum);
    return result;
  }
};

// -ln sum_j (p_j / P) exp(x_j) for scores x with weighted mean 0. Near x = 0 it is formed from expm1, without cancellation.
template <class Scores>
__device__ float divergence(const Cluster& cluster, const Scores& scores, float first, float middle,
                            float all_votes) {
  float below = 0, whole = 0;
  scores.each([&](int, const Member& member, float score) {
    const float centred = score - first - middle, share = member.votes / all_votes;
    below += share * expm1f(centred);
    whole += share * expf(centred);
  });
  below = cluster.sum(below);
  whole = cluster.sum(whole);
  const float result = below > -0.5f ? -log1pf(below) : -logf(whole);
  cluster.report(is_finite(result));
  return fmaxf(result, 0.0f);
}

// z* / m = 1 - KL / m.
template <class Scores>
__device__ uint8_t form_zip_scale(const Cluster& cluster, const Scores& scores, float divergence,
                                  float mean_score) {
  float most = 0;
  scores.each([&](int, const Member&, float score) { most = fmaxf(most, fabsf(score)); });
  most = cluster.largest(most);
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

// The weights of one cluster by the lanes' row of scores, of which those behind the last row repeat it. Returns what ZIP's
// scale is. The whole warp calls it.
//
// log_shares  [rows], shared memory
__device__ uint8_t weigh(const Cluster& cluster, int first_row, float all_votes, float* log_shares) {
  const WeightArguments& p = cluster.p;
  const auto rows = static_cast<int>(p.weights.rows);
  const int row = min(first_row + cluster.row_of_lane(), rows - 1);
  const bool writes = first_row + cluster.row_of_lane() < rows;
  const RowScores scores(cluster, [&](int entry) { return cluster.score(row, entry); });
  const LogSum sum = scores.log_sum();
  const float first = cluster.of_kept(scores.own);
  float middle = 0;
  scores.each([&](int m, const Member& member, float score) {
    const float weight = expf(member.log_votes + score - sum.largest) / sum.sum;
    if (writes) cluster.weight(row, m) = weight;
    middle += weight * (score - first);  // exactly 0 where scores are equal
  });
  middle = cluster.sum(middle);
  const float apart = divergence(cluster, scores, first, middle, all_votes);
  if (writes && cluster.is_first_of_row()) {
    cluster.number(p.numbers.divergences, row) = apart;
    const int64_t head = cluster.g * p.weights.rows + row;
    log_shares[row] = rows > 1 ? 2 * (sum.log() - p.log_denominators[head]) : 0;
    if (rows == p.group_size) cluster.log_score(row) = sum.log() - logf(all_votes);
  }
  return p.numbers.zip_scales ? form_zip_scale(cluster, scores, apart, first + middle) : 0;
}

// Turns the logarithms of the heads' shares into shares of sum 1.
__device__ void put_shares(const Cluster& cluster, const float* log_shares) {
  const WeightArguments& p = cluster.p;
  float largest = kNothing, sum = 0;
  for (int row = lane(); row < p.weights.rows; row += 32) largest = fmaxf(largest, log_shares[row]);
  largest = warp_max(largest);
  for (int row = lane(); row < p.weights.rows; row += 32) sum += expf(log_shares[row] - largest);
  sum = warp_sum(sum);
  for (int row = lane(); row < p.weights.rows; row += 32) {
    cluster.number(p.numbers.shares, row) = expf(log_shares[row] - largest) / sum;
  }
}

// The predicted scores of the merged entry by query heads that are not weighted by rows of their own.
__device__ void put_log_scores(const Cluster& cluster, float all_votes) {
  const auto heads = static_cast<int>(cluster.p.group_size);
  for (int first = 0; first < heads; first += cluster.rows_at_once()) {
    const int head = min(first + cluster.row_of_lane(), heads - 1);
    const RowScores scores(cluster, [&](int entry) { return cluster.score_of(head, entry); });
    const LogSum sum = scores.log_sum();
    if (first + cluster.row_of_lane() < heads && cluster.is_first_of_row()) {
      cluster.log_score(head) = sum.log() - logf(all_votes);
    }
  }
}

__device__ void put_votes(const Cluster& cluster, float all_votes) {
  const MergedVotes& to = cluster.p.votes;
  const MergedEntries& merged = cluster.p.merged;
  if (!to.votes) return;
  __syncwarp();  // all lanes have read the members' votes
  if (lane() > 0) return;
  const int64_t place = cluster.g * merged.clusters.capacity + cluster.i;
  const int64_t into = cluster.g * to.stride + (merged.into ? merged.into[place] : cluster.i);
  to.votes[into] = all_votes;
  to.log_votes[into] = logf(all_votes);
}

struct WeightShared {
  float* log_shares;  // [kWarps, rows]

  __host__ __device__ WeightShared(SharedMemory& memory, int64_t rows)
      : log_shares(memory.array<float>(kWarps * rows)) {}
};

// The weights of one cluster: a warp has one kept entry.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128
// shared     16 bytes for each row of weights
// registers  96 (sm_90a and sm_80)
// bytes      read: for each merging entry 8, 4 for its votes and 4 for each query head, of clusters of more than 32 from the
//            caches again for each of four passes; written: 4 for each row of weights and merging entry, 8 for each cluster and
//            row, 4 for each cluster and query head, up to 13 for each cluster
// FLOP       about 30 with four exponentials for each row of weights and merging entry
__global__ void __launch_bounds__(kWarps * 32) cluster_weights_kernel(WeightArguments p) {
  SharedMemory memory;
  const WeightShared shared(memory, p.weights.rows);
  const int64_t kept = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (kept >= p.merged.clusters.capacity) return;
  const Cluster cluster(p, blockIdx.y, kept);
  uint8_t* const outcomes = p.numbers.zip_outcomes + cluster.g * p.merged.clusters.capacity;
  if (cluster.count == 0) {
    if (lane() == 0 && p.numbers.zip_outcomes) outcomes[kept] = 0;
    return;
  }
  float* const log_shares = shared.log_shares + warp() * p.weights.rows;
  float votes = 0;
  cluster.each([&](int, const Member& member) { votes += member.votes; });
  votes = cluster.sum(votes);
  uint8_t outcome = 0;
  for (int row = 0; row < p.weights.rows; row += cluster.rows_at_once()) {
    outcome |= weigh(cluster, row, votes, log_shares);
  }
  __syncwarp();
  put_shares(cluster, log_shares);
  if (p.weights.rows != p.group_size) put_log_scores(cluster, votes);
  put_votes(cluster, votes);
  if (lane() == 0 && p.numbers.zip_outcomes) outcomes[kept] = outcome;
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
  launch<cluster_weights_kernel>({extent(ceil_division(merged.clusters.capacity, kWarps), kv_heads),
                                  extent(kWarps * 32), shared_bytes<WeightShared>(weights.rows), stream},
                                 WeightArguments{entries,
                                                 group_size,
                                                 log_denominators,
                                                 merged,
                                                 weights,
                                                 numbers,
                                                 votes,
                                                 status,
                                                 {weights.rows, kv_heads, merged.clusters.capacity},
                                                 {weights.rows, kv_heads, merged.clusters.stride}});
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
