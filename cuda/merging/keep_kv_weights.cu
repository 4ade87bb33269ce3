// The weights of clusters' entries, and the numbers of the merged ones.
#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "keep_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kWarps = 4;

__device__ bool is_finite(float number) { return fabsf(number) <= std::numeric_limits<float>::max(); }

// A sum of exponentials, as its largest term's logarithm and a multiple of that term.
struct LogSum {
  float largest, sum;

  __device__ float log() const { return sum > 0 ? largest + logf(sum) : kNothing; }
};

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

// The lanes of a warp that weights a cluster. They have several rows of scores at a time, each of them by as
// many lanes as the cluster has members.
//
//     a cluster of 5 members
//     lanes  0 .. 7                  8 .. 15                16 .. 23     24 .. 31
//            members 0 .. 4, row 0   members 0 .. 4, row 1  row 2        row 3
class WarpTeam {
 public:
  // entries  of the cluster, up to 32
  __device__ explicit WarpTeam(int entries) {
    while (lanes_ < entries) lanes_ *= 2;
  }
  __device__ int lanes() const { return lanes_; }  // of a row: a power of two
  __device__ int rows_at_once() const { return 32 / lanes_; }
  __device__ int thread() const { return lane(); }
  __device__ void sync() const { __syncwarp(); }
  // The numbers of a row's lanes, joined. All lanes call it, and get their row's.
  template <class Join>
  __device__ float join(float number, const Join& joined) const {
    for (int distance = lanes_ / 2; distance > 0; distance /= 2) {
      number = joined(number, __shfl_xor_sync(kAllLanes, number, distance));
    }
    return number;
  }
  // The number of the row's first lane. All lanes call it.
  __device__ float of_first(float number) const {
    return __shfl_sync(kAllLanes, number, lane() / lanes_ * lanes_);
  }

 private:
  int lanes_ = 1;
};

// The threads of a block that weights a large cluster: two warps have a row of scores; of a single row,
// all pairs have the same.
class BlockTeam {
 public:
  static constexpr int kRowWarps = 2, kThreads = 256;

  // by_warp  [kThreads / 32], shared memory
  __device__ explicit BlockTeam(float* by_warp) : by_warp_(by_warp) {}
  __device__ int lanes() const { return 32 * kRowWarps; }
  __device__ int rows_at_once() const { return kThreads / lanes(); }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ void sync() const { __syncthreads(); }
  template <class Join>
  __device__ float join(float number, const Join& joined) const {
    const float* const of_row = exchange(join_lanes<32>(number, joined));
    number = of_row[0];
    for (int w = 1; w < kRowWarps; ++w) number = joined(number, of_row[w]);
    return number;
  }
  __device__ float of_first(float number) const { return exchange(number)[0]; }

 private:
  // The numbers of the first lanes of the row's warps.
  __device__ const float* exchange(float number) const {
    __syncthreads();  // all threads have read the previous numbers
    if (lane() == 0) by_warp_[warp()] = number;
    __syncthreads();
    return by_warp_ + warp() / kRowWarps * kRowWarps;
  }

  float* by_warp_;
};

// One cluster: its member 0 is the kept entry.
template <class Team>
struct Cluster {
  const WeightArguments& p;
  const Team& team;
  int64_t g, i;
  int64_t first;  // place of member 1
  int count;      // members, the kept entry included
  Member own;     // the lane's first one

  __device__ Cluster(const WeightArguments& arguments, const Team& lanes, int64_t kv_head, int64_t kept)
      : p(arguments),
        team(lanes),
        g(kv_head),
        i(kept),
        first(first_of(p, g, i)),
        count(members_of(p, g, i) + 1) {
    if (lane_of_row() < count) own = member(lane_of_row());
  }

  __device__ static int64_t first_of(const WeightArguments& p, int64_t g, int64_t kept) {
    return p.merged.clusters.offsets[g * (p.merged.clusters.capacity + 1) + kept];
  }
  // Without the kept entry.
  __device__ static int members_of(const WeightArguments& p, int64_t g, int64_t kept) {
    return static_cast<int>(first_of(p, g, kept + 1) - first_of(p, g, kept));
  }

  __device__ int lane_of_row() const { return team.thread() & (team.lanes() - 1); }
  // The calling lane's row among those that the team has at a time.
  __device__ int row_of_lane() const { return team.thread() / team.lanes(); }
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
    for (int m = lane_of_row() + team.lanes(); m < count; m += team.lanes()) work(m, member(m));
  }
  __device__ float sum(float number) const { return team.join(number, Sum()); }
  __device__ float largest(float number) const { return team.join(number, Larger()); }

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
template <class Team, class Score>
struct RowScores {
  const Cluster<Team>& cluster;
  Score score_of_entry;
  float own;  // of the lane's first member

  __device__ RowScores(const Cluster<Team>& members, const Score& score)
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

// -ln sum_j (p_j / P) exp(x_j) for scores x with weighted mean 0. Near x = 0 it is formed from
// expm1, without cancellation.
template <class Team, class Scores>
__device__ float divergence(const Cluster<Team>& cluster, const Scores& scores, float first, float middle,
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
template <class Team, class Scores>
__device__ uint8_t form_zip_scale(const Cluster<Team>& cluster, const Scores& scores, float divergence,
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
  if (cluster.team.thread() == 0) cluster.number(cluster.p.numbers.zip_scales, 0) = scale;
  return outcome;
}

// The weights of one cluster by the lanes' row of scores, of which those behind the last row repeat it.
// Returns what ZIP's scale is. The whole team calls it.
//
// log_shares  [rows], shared memory
template <class Team>
__device__ uint8_t weigh_rows(const Cluster<Team>& cluster, int first_row, float all_votes,
                              float* log_shares) {
  const WeightArguments& p = cluster.p;
  const auto rows = static_cast<int>(p.weights.rows);
  const int row = min(first_row + cluster.row_of_lane(), rows - 1);
  const bool writes = first_row + cluster.row_of_lane() < rows;
  const RowScores scores(cluster, [&](int entry) { return cluster.score(row, entry); });
  const LogSum sum = scores.log_sum();
  const float first = cluster.team.of_first(scores.own);
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

// Turns the logarithms of the heads' shares into shares of sum 1. A whole warp calls it.
template <class Team>
__device__ void put_shares(const Cluster<Team>& cluster, const float* log_shares) {
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

// The predicted scores of the merged entry by query heads without separate rows of weights.
template <class Team>
__device__ void put_log_scores(const Cluster<Team>& cluster, float all_votes) {
  const auto heads = static_cast<int>(cluster.p.group_size);
  for (int first = 0; first < heads; first += cluster.team.rows_at_once()) {
    const int head = min(first + cluster.row_of_lane(), heads - 1);
    const RowScores scores(cluster, [&](int entry) { return cluster.score_of(head, entry); });
    const LogSum sum = scores.log_sum();
    if (first + cluster.row_of_lane() < heads && cluster.is_first_of_row()) {
      cluster.log_score(head) = sum.log() - logf(all_votes);
    }
  }
}

// The merged entry's votes and their logarithm, where the entry is replaced. The whole team calls it.
template <class Team>
__device__ void put_votes(const Cluster<Team>& cluster, float all_votes) {
  const MergedVotes& to = cluster.p.votes;
  const MergedEntries& merged = cluster.p.merged;
  if (!to.votes) return;
  cluster.team.sync();  // all lanes have read the members' votes
  if (cluster.team.thread() > 0) return;
  const int64_t place = cluster.g * merged.clusters.capacity + cluster.i;
  const int64_t into = cluster.g * to.stride + (merged.into ? merged.into[place] : cluster.i);
  to.votes[into] = all_votes;
  to.log_votes[into] = logf(all_votes);
}

// The weights of one cluster, and the merged entry's numbers. The whole team calls it.
//
// log_shares  [rows], shared memory
template <class Team>
__device__ void weigh(const Cluster<Team>& cluster, float* log_shares) {
  const WeightArguments& p = cluster.p;
  float votes = 0;
  cluster.each([&](int, const Member& member) { votes += member.votes; });
  votes = cluster.sum(votes);
  uint8_t outcome = 0;
  for (int row = 0; row < p.weights.rows; row += cluster.team.rows_at_once()) {
    outcome |= weigh_rows(cluster, row, votes, log_shares);
  }
  cluster.team.sync();
  if (cluster.team.thread() < 32) put_shares(cluster, log_shares);
  if (p.weights.rows != p.group_size) put_log_scores(cluster, votes);
  put_votes(cluster, votes);
  if (cluster.team.thread() == 0 && p.numbers.zip_outcomes) {
    p.numbers.zip_outcomes[cluster.g * p.merged.clusters.capacity + cluster.i] = outcome;
  }
}

// The members, the kept entry not counted, of a cluster that a warp weights: a lane has
// one of each row at most.
constexpr int kMostOfWarp = 31;

struct WarpShared {
  float* log_shares;  // [kWarps, rows]

  __host__ __device__ WarpShared(SharedMemory& memory, int64_t rows)
      : log_shares(memory.array<float>(kWarps * rows)) {}
};

// The weights of one cluster of up to 31 members: a warp has one kept entry.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128
// shared     16 bytes for each row of weights
// registers  80 (sm_90a), 72 (sm_80)
// bytes      read: for each merging entry 8, 4 for its votes and 4 for each query head; written: 4 for each
//            row of weights and merging entry, 8 for each cluster and row, 4 for each cluster and query head,
//            up to 13 for each cluster
// FLOP       about 30 with four exponentials for each row of weights and merging entry
__global__ void __launch_bounds__(kWarps * 32) cluster_weights_kernel(WeightArguments p) {
  begin_dependent_launch();
  SharedMemory memory;
  const WarpShared shared(memory, p.weights.rows);
  const int64_t g = row_of_block(), kept = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (g >= p.of_kept.kv_heads || kept >= p.merged.clusters.capacity) return;
  const int members = Cluster<WarpTeam>::members_of(p, g, kept);
  if (members > kMostOfWarp) return;
  if (members > 0) {
    const WarpTeam team(members + 1);
    weigh(Cluster(p, team, g, kept), shared.log_shares + warp() * p.weights.rows);
  } else if (lane() == 0 && p.numbers.zip_outcomes) {
    p.numbers.zip_outcomes[g * p.merged.clusters.capacity + kept] = 0;
  }
}

struct BlockShared {
  float* log_shares;  // [rows]
  float* by_warp;     // [kThreads / 32]
  int* large;         // [kThreads]: kept entries with large clusters
  int* count;

  __host__ __device__ BlockShared(SharedMemory& memory, int64_t rows)
      : log_shares(memory.array<float>(rows)),
        by_warp(memory.array<float>(BlockTeam::kThreads / 32)),
        large(memory.array<int>(BlockTeam::kThreads)),
        count(memory.array<int>(1)) {}
};

// The same of larger clusters: a block has those of every gridDim.x-th kept entry, one after the other.
//
// grid       (about two blocks for each multiprocessor, divided by the KV heads; kv_heads)
// block      256
// shared     1,060 bytes, and 16 for each four rows of weights
// registers  109 (sm_90a), 104 (sm_80)
// bytes      as above, for the entries of large clusters, from the caches again for each of
//            four passes; all offsets
// FLOP       as above
__global__ void __launch_bounds__(BlockTeam::kThreads, 1) large_cluster_weights_kernel(WeightArguments p) {
  begin_dependent_launch();
  SharedMemory memory;
  const BlockShared shared(memory, p.weights.rows);
  const BlockTeam team(shared.by_warp);
  const int64_t g = row_of_block(), blocks = gridDim.x;
  if (g >= p.of_kept.kv_heads) return;
  for (int64_t first = blockIdx.x; first < p.merged.clusters.capacity;
       first += blocks * BlockTeam::kThreads) {
    if (team.thread() == 0) *shared.count = 0;
    __syncthreads();
    const int64_t kept = first + team.thread() * blocks;
    if (kept < p.merged.clusters.capacity && Cluster<BlockTeam>::members_of(p, g, kept) > kMostOfWarp) {
      shared.large[atomicAdd(shared.count, 1)] = static_cast<int>(kept);
    }
    __syncthreads();
    for (int n = 0; n < *shared.count; ++n) {
      weigh(Cluster(p, team, g, shared.large[n]), shared.log_shares);
      __syncthreads();  // the next cluster's shares are written where this one's were read
    }
    __syncthreads();
  }
}

void launch_weights(const WeightArguments& arguments, int64_t kv_heads, Stream stream) {
  const Clusters& clusters = arguments.merged.clusters;
  const int64_t rows = arguments.weights.rows;
  launch_dependent<cluster_weights_kernel>(
      {extent_of_rows(ceil_division(clusters.capacity, kWarps), kv_heads), extent(kWarps * 32),
       shared_bytes<WarpShared>(rows), stream},
      arguments);
  if (clusters.stride <= kMostOfWarp) return;  // there is no large cluster
  const int64_t blocks = std::min(clusters.capacity, ceil_division(2 * device().multiprocessors, kv_heads));
  launch_dependent<large_cluster_weights_kernel>(
      {extent_of_rows(blocks, kv_heads), extent(BlockTeam::kThreads), shared_bytes<BlockShared>(rows),
       stream},
      arguments);
}

}  // namespace

void cluster_weights(const KeyRule& rule, const ScoredEntries& entries, int64_t query_heads, int64_t kv_heads,
                     const float* log_denominators, const MergedEntries& merged,
                     const ClusterWeights& weights, const MergedNumbers& numbers, const MergedVotes& votes,
                     int* status, Stream stream) {
  require_groups(query_heads, kv_heads);
  const int64_t group_size = query_heads / kv_heads;
  require_equal("rows of weights", weights.rows, "rows that the rule weights by",
                merging_rows(rule.gqa, group_size));
  if (merged.clusters.capacity == 0) return;
  launch_weights({entries,
                  group_size,
                  log_denominators,
                  merged,
                  weights,
                  numbers,
                  votes,
                  status,
                  {weights.rows, kv_heads, merged.clusters.capacity},
                  {weights.rows, kv_heads, merged.clusters.stride}},
                 kv_heads, stream);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
