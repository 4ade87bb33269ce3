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

namespace kvbound::reference {

/// What a host that evicts knows of one KV head's entries, and how it chooses in decoding.
///
///     accumulate (h2o)        score^h_j += this query's
///     replace    (tova)       score^h_j  = this query's
///     none       (streaming)  entries have no score: one that is neither a sink nor recent is evicted
///
/// this query's: its attention weight A^h_j over the cache as it is now, or another score of obcache.hpp. A step costs
/// O(entries); nothing is scored again.
///
/// source  H2O (arXiv:2306.14048), Algorithm 1; TOVA (arXiv:2401.06104), section 3; OBCache (arXiv:2510.07651), section 4
class HeadEviction {
 public:
  /// layer        what it views outlives the object
  /// budget       entries kept after a step
  /// head_scores  [group_size, n] at the prompt's end, not reduced over the group; empty for hosts that rank no entries
  /// norms        [group_size, entries] projected value norms of the cache, with `critical`; else empty
  /// cache        after the prompt
  HeadEviction(const LayerView& layer, const Policy& policy, int64_t kv_head, int64_t budget,
               MatrixView head_scores, MatrixView norms, const HeadCache& cache);

  /// Notes the entry that was just appended to the cache.
  void enter(const HeadCache& cache);
  /// Outputs of the group's queries [group_size, head_dim]; their scores update the running ones.
  Matrix attend(MatrixView queries, const HeadCache& cache);
  /// The entry to evict; none if the cache is within its budget. Of those not always kept the one of smallest score; with
  /// `critical`, of smallest stage-two score among those outside stage one. Ties: the larger position is evicted.
  std::optional<int64_t> next_evicted(const HeadCache& cache, int64_t newest) const;
  /// Forgets the entry; before it is removed from the cache.
  void remove(int64_t entry);
  /// Notes that an entry's value has changed; its score stays.
  void revalue(int64_t entry, const HeadCache& cache);

  /// Whether entries have scores.
  bool is_scored() const { return rules_.ranks(); }
  /// The running scores per query head, as the cache is now, [group_size, entries]; not reduced over the group.
  MatrixView head_scores() const { return of_entries(scores_); }
  /// Projected value norms, with `critical`; likewise.
  MatrixView norms() const { return of_entries(norms_); }

 private:
  MatrixView of_entries(const Matrix& matrix) const { return matrix.view().middle_cols(0, entries_); }
  void update(MatrixView contributions);
  std::vector<double> reduced_scores() const;
  std::vector<int64_t> outside_stage_one(std::vector<int64_t> candidates, const HeadCache& cache,
                                         VectorView scores) const;
  int64_t adaptive_count(const std::vector<int64_t>& ranked, int64_t kept) const;

  HostRules rules_;
  ScoreRules score_;
  std::optional<TwoStage> stages_;  // of selections whose stages also decide in decoding
  int64_t budget_;
  double scale_;
  int64_t group_size_;
  int64_t entries_;
  MatrixView output_projection_;    // [group_size * head_dim, model_dim]
  std::vector<ValueSpace> spaces_;  // [group_size], of scores that measure a change
  // Columns are entries, with room for one more than there are, and than the budget.
  Matrix scores_;         // [group_size, ...]
  Matrix squared_norms_;  // likewise, of scores that measure a change
  Matrix norms_;          // likewise, projected value norms, with `critical`
  Matrix weights_;        // A of the last step [group_size, entries], with an adaptive stage one
};

}  // namespace kvbound::reference
