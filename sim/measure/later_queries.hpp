// What merged entries do to queries that come after their merge, and KeepKV's bounds on it.
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

/// What the latest merge does to queries after it. Rows are decode steps, columns query heads; o is the attention output. The
/// cache before is the present one with every merged entry of that merge that is still there, as it was then, replaced by its
/// members. NaN where no merged entry is left.
struct LaterQueries {
  Matrix perturbation;  ///< Theta = || o(q_t, the cache before) - o(q_t, the cache) ||_2
  /// epsilon = max |1 - s^/s| over the members and the merged entries; NaN where nothing was predicted
  Matrix prediction_error;
  /// At least gamma = max ||v_i - v_j||_2, i in the cache before, j its merged members: over all that were ever in it since the
  /// merge, and all members that there were
  Matrix value_distance;
  Matrix share;  ///< A'_r: of the attention, what the merged entries get
  Matrix sag;    ///< the members' attention over the cache before, less that share
  /// Upper bounds on the perturbation, of merges that vote; infinite where epsilon is not below 1, and NaN where there are none.
  Matrix bound;         ///< KKV-5, for one query head per KV head alone
  Matrix shared_bound;  ///< KKV-5', likewise: that times the share
  /// KKV-5-joint, for any number of query heads and clusters: KKV-5' + sum_r A'_r ||v_r - v-_h||, v-_h the mean by the head's own scores
  Matrix joint_bound;
  std::vector<StepHead>
      violations;  ///< ascending: where the last is exceeded by more than rounding can explain
};

/// What a policy's merges say of themselves.
struct MergeKind {
  bool votes = false;               ///< merged entries vote for their members: without that there is no bound
  ScoreKind unit = ScoreKind::raw;  ///< of predicted scores
};

/// The merges of one KV head of which merged entries are still in its cache.
///
/// proof  proofs/keep_kv.md#kkv-5, #kkv-5-prime; of several clusters and query heads #kkv-5-joint
class OpenMerges {
 public:
  /// values      [n + T, head_dim], the KV head's own
  /// group_size  query heads that share it
  OpenMerges(MatrixView values, int64_t group_size, double scale)
      : values_(values), group_size_(group_size), scale_(scale) {}

  /// A merge is done; merged entries that it replaced no longer stand for what they stood for.
  ///
  /// after  the cache after it
  /// seen   positions 0..seen - 1 have been in the cache
  void open(const reference::CacheMerge& merge, const reference::CacheEntries& after, const MergeKind& kind,
            int64_t seen);
  /// The entry at a position was evicted.
  void close(int64_t position);
  /// The cache was built anew.
  void clear() { merges_.clear(); }

  /// Measures what the latest merge does to a step's queries, if there is one. Fills in row t, the columns of the cluster.
  ///
  /// queries     [group_size, head_dim]
  /// first_head  the cluster's first query head
  /// present     the cache as the queries find it
  /// seen        as in `open`
  /// returns     where the bound is violated
  std::vector<StepHead> measure(MatrixView queries, const reference::CacheEntries& present, int64_t seen,
                                int64_t t, int64_t first_head, LaterQueries& later);

 private:
  // A merged entry that is still in the cache.
  struct Cluster {
    int64_t into = 0;
    reference::ClusterMembers members;      // as they were; log_scores may be empty
    std::vector<double> log_merged;         // [heads]: ln s^_r
    std::vector<double> log_merged_error;   // and how far rounding may take that
    std::vector<double> value_apart;        // [heads]: ||v_r - v-_h||
    std::vector<double> value_apart_error;  // and how far rounding may take that
  };
  struct Merge {
    MergeKind kind;
    std::vector<Cluster> clusters;
    Matrix merged_values;  // of all members that there were
    double distance = 0;   // gamma, with those who came later
    int64_t seen = 0;      // positions before this one are in it
  };

  static Cluster open_cluster(const MergeCluster& cluster, const reference::CacheEntries& before,
                              const reference::CacheEntries& after);
  static double prediction_error(const Merge& merge, const reference::MergeEffect& effect, int64_t head);
  static double weighted_sum(const Merge& merge, VectorView weights,
                             const std::vector<double> Cluster::*figures, int64_t head);
  void accumulate_values(Merge& merge, int64_t seen) const;
  double bound_with_rounding(const Merge& merge, std::span<const reference::MergedCluster> clusters,
                             VectorView weights, double prediction_error,
                             const reference::CacheEntries& present, VectorView query, int64_t head) const;

  MatrixView values_;
  int64_t group_size_;
  double scale_;
  std::vector<Merge> merges_;  // the latest last
};

}  // namespace kvbound::sim
