// The effect of merged entries on queries after their merge, and KeepKV's bounds on that effect.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/merging/merge_effect.hpp>
#include <kvbound/reference/merging/merged_cache.hpp>

namespace kvbound::sim {

/// A decode step and a query head.
struct StepHead {
  int64_t step = 0;
  int64_t query_head = 0;
  friend bool operator==(const StepHead&, const StepHead&) = default;
};

/// The effect of a KV head's latest merge on later queries. Rows are decode steps, columns query heads; o is
/// the attention output. "The cache before" is the present cache in which every merged entry of that merge,
/// if it is still present and unchanged, is replaced by its members. NaN where no such entry is left.
struct LaterQueries {
  Matrix perturbation;  ///< Theta = || o(q_t, the cache before) - o(q_t, the cache) ||_2
  /// epsilon = max |1 - s^/s| over the members and the merged entries; NaN if the method predicts no scores
  Matrix prediction_error;
  /// At least gamma = max ||v_i - v_j||_2, over all i that have been in the cache since the merge and all
  /// members j that the merge had.
  Matrix value_distance;
  Matrix share;  ///< sum_r A'_r: the attention that the merged entries receive
  Matrix sag;    ///< the attention that the members receive in the cache before, less `share`
  /// Upper bounds on the perturbation, for merges with votes; infinite where epsilon >= 1, NaN
  /// where there is no bound.
  Matrix bound;         ///< KKV-5; only for one query head per KV head
  Matrix shared_bound;  ///< KKV-5' = KKV-5 times `share`; only for one query head per KV head
  /// KKV-5-joint, for any number of query heads and clusters: the smaller of KKV-5' and KKV-5-sharp, plus
  /// sum_r A'_r ||v_r - v-_h||, where v-_h is the mean by the head's own scores.
  Matrix joint_bound;
  /// KKV-5-free: gamma TV + sum_r A'_r ||v_r - v-_h||, for any epsilon: TV is the total variation of the
  /// attention over the cache before, if every merged entry's goes to its members in the proportion of their
  /// predicted weights.
  Matrix variation_bound;
  std::vector<StepHead>
      violations;  ///< ascending: where one of the last two is exceeded by more than rounding explains
};

/// Properties of a policy's merges that decide which bounds hold.
struct MergeKind {
  bool votes = false;               ///< whether merged entries have votes; without votes there is no bound
  ScoreKind unit = ScoreKind::raw;  ///< kind of the predicted scores
};

/// The merges of one KV head that still have merged entries in its cache.
///
/// proof  proofs/keep_kv.md#kkv-5, #kkv-5-prime, #kkv-5-sharp, #kkv-5-free; of several clusters and query
///        heads #kkv-5-joint
class OpenMerges {
 public:
  /// values      [n + T, head_dim], of this KV head
  /// group_size  query heads that share the KV head
  OpenMerges(MatrixView values, int64_t group_size, double scale)
      : values_(values), group_size_(group_size), scale_(scale) {}

  /// Records a merge. Earlier clusters whose merged entry it replaced are closed.
  ///
  /// after  the cache after the merge
  /// seen   positions 0..seen - 1 have been in the cache
  void open(const reference::CacheMerge& merge, const reference::CacheEntries& after, const MergeKind& kind,
            int64_t seen);
  /// Records that the entry at a position was evicted.
  void close(int64_t position);
  /// Forgets all merges, because the cache was rebuilt.
  void clear() { merges_.clear(); }

  /// Measures the effect of the latest merge, if there is one, on a step's queries. Fills row t of `later`,
  /// in the columns of the KV head's query heads.
  ///
  /// queries     [group_size, head_dim]
  /// first_head  the first query head that shares the KV head
  /// present     the cache when the queries attend
  /// seen        as in `open`
  /// returns     where the bound is violated
  std::vector<StepHead> measure(MatrixView queries, const reference::CacheEntries& present, int64_t seen,
                                int64_t t, int64_t first_head, LaterQueries& later);

 private:
  // A cluster whose merged entry is still in the cache.
  struct Cluster {
    int64_t into = 0;
    reference::ClusterMembers members;      // as before the merge; log_scores may be empty
    std::vector<double> log_merged;         // [heads]: ln s^_r
    std::vector<double> log_merged_error;   // [heads]: bounds on the rounding of log_merged
    Matrix weights;                         // [heads, members]: w/W by the head's own scores
    std::vector<double> value_apart;        // [heads]: ||v_r - v-_h||
    std::vector<double> value_apart_error;  // [heads]: bounds on the rounding of value_apart
  };
  struct Merge {
    MergeKind kind;
    std::vector<Cluster> clusters;
    Matrix merged_values;  // values of all members that the merge had
    double distance = 0;   // gamma, including values that entered the cache later
    int64_t seen = 0;      // `distance` covers the positions below this one
  };

  static Cluster open_cluster(const MergeCluster& cluster, const reference::CacheEntries& before,
                              const reference::CacheEntries& after);
  static double prediction_error(const Merge& merge, const reference::MergeEffect& effect, int64_t head);
  static double smallest_bound(double prediction_error, const Merge& merge, double share);
  static double variation(const Merge& merge, const reference::MergeEffect& effect, int64_t head);
  static double weighted_sum(const Merge& merge, VectorView weights,
                             const std::vector<double> Cluster::*figures, int64_t head);
  void accumulate_values(Merge& merge, int64_t seen) const;
  double bound_with_rounding(const Merge& merge, std::span<const reference::MergedCluster> clusters,
                             const reference::MergeEffect& effect, double prediction_error,
                             const reference::CacheEntries& present, VectorView query, int64_t head) const;

  MatrixView values_;
  int64_t group_size_;
  double scale_;
  std::vector<Merge> merges_;  // in order of time
};

}  // namespace kvbound::sim
