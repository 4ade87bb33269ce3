// The running scores of one KV head's entries, and which entry is evicted next.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/head_cache.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/numerics/row_norms.hpp>

namespace kvbound::reference {

/// The running scores of one KV head's entries, and the choice of the evicted entry during decoding.
///
///     accumulate (h2o)        score^h_j += s^h_j
///     replace    (tova)       score^h_j  = s^h_j
///     none       (streaming)  entries have no score: an entry that is neither a sink nor recent is evicted
///
/// s^h_j is the step's score of entry j: the query's attention weight A^h_j over the current cache, or
/// another score of obcache.hpp. A step costs O(entries): scores of former queries are not computed again.
///
/// source  H2O (arXiv:2306.14048), Algorithm 1; TOVA (arXiv:2401.06104), section 3; OBCache
///         (arXiv:2510.07651), section 4
class HeadEviction {
 public:
  /// layer        the memory that it views must outlive the object
  /// budget       entries kept after a step
  /// head_scores  [group_size, n] at the prompt's end, not reduced over the group; empty for
  ///              hosts that rank no entries
  /// norms        [group_size, entries] projected value norms of the cache, for the
  ///              selection `critical`; else empty
  /// cache        the cache after the prompt
  HeadEviction(const LayerView& layer, const Policy& policy, int64_t kv_head, int64_t budget,
               MatrixView head_scores, MatrixView norms, const HeadCache& cache);

  /// Adds a column for the entry that was just appended to the cache.
  void enter(const HeadCache& cache);
  /// Outputs of the group's queries [group_size, head_dim]; their scores update the running ones.
  Matrix attend(MatrixView queries, const HeadCache& cache);
  /// The entry to evict; nullopt if the cache is within its budget. Of the entries that are
  /// not always kept, the one of smallest score; with `critical`, of those also outside
  /// stage one, the one of smallest stage-two score. Ties: the larger position is evicted. Of a host that
  /// has a method for it, what the method says: throws InvalidPolicy for what is not in the cache.
  std::optional<int64_t> next_evicted(const HeadCache& cache, int64_t newest) const;
  /// Removes the entry's columns. Call it before the entry is removed from the cache.
  void remove(int64_t entry);
  /// Recomputes the norms of an entry whose value has changed; its running score does not change.
  void revalue(int64_t entry, const HeadCache& cache);

  /// Whether entries have scores.
  bool is_scored() const { return rules_.step_update != StepUpdate::none; }
  /// The running scores per query head, [group_size, entries]; not reduced over the group.
  MatrixView head_scores() const { return of_entries(scores_); }
  /// Projected value norms [group_size, entries] with `critical`, else empty.
  MatrixView norms() const { return of_entries(norms_); }

 private:
  MatrixView of_entries(const Matrix& matrix) const { return matrix.view().middle_cols(0, entries_); }
  void update(MatrixView contributions);
  int64_t chosen_by_method(const HeadCache& cache) const;
  std::vector<double> reduced_scores() const;
  std::vector<int64_t> outside_stage_one(std::vector<int64_t> candidates, const HeadCache& cache,
                                         VectorView scores) const;
  int64_t adaptive_count(const std::vector<int64_t>& ranked, int64_t kept) const;

  HostRules rules_;
  ScoreRules score_;
  int64_t kv_head_;
  std::optional<TwoStage> stages_;  // for selections whose two stages also decide evictions during decoding
  int64_t budget_;
  double scale_;
  int64_t group_size_;
  int64_t entries_;
  std::vector<ValueSpace> spaces_;   // [group_size], for scores that measure a change
  std::vector<NormFactor> factors_;  // [group_size] W^O_h, for `critical`
  // Columns are entries; there is room for one more than the budget, and than the entries after the prompt.
  Matrix scores_;         // [group_size, ...]
  Matrix squared_norms_;  // [group_size, ...], for scores that measure a change
  Matrix norms_;          // [group_size, ...], projected value norms, for `critical`
  Matrix weights_;        // A of the last step [group_size, entries]
};

}  // namespace kvbound::reference
