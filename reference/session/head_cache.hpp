// One KV head's compressed cache while it is decoded with, and who has to leave it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/obcache.hpp>

namespace kvbound::reference {

/// The entries of one KV head, in any order: who leaves gives its place to the last one, so that leaving costs nothing.
struct HeadCache {
  std::vector<int64_t> positions;
  Matrix keys;                ///< [entries, head_dim]
  Matrix values;              ///< [entries, head_dim]
  std::vector<double> votes;  ///< [entries]: for how many each one speaks; empty: 1 for all

  int64_t entries() const { return static_cast<int64_t>(positions.size()); }
  void append(int64_t position, VectorView key, VectorView value);
  void remove(int64_t entry);
};

/// What a host that evicts knows of one KV head's entries, and how it chooses in decoding.
///
///     h2o            score^h_j += this query's,  in the order: the new entry enters, queries attend, scores take in, one leaves
///     tova           score^h_j  = this query's
///     streaming-llm  none: whoever is neither a sink nor new enough leaves
///
/// this query's: its attention weight A^h_j over the cache as it is now, or another score of obcache.hpp. A step costs
/// O(entries); nothing is scored again.
///
/// source  H2O (arXiv:2306.14048), Algorithm 1; TOVA (arXiv:2401.06104), section 3; OBCache (arXiv:2510.07651), section 4
class Eviction {
 public:
  /// layer        what it views outlives the eviction
  /// budget       entries that stay after a step
  /// head_scores  [group_size, n] at the prompt's end, not reduced over the group; empty for streaming-llm
  /// norms        [group_size, entries] projected value norms of the cache, with `critical`; else empty
  /// cache        after the prompt
  Eviction(const LayerView& layer, const Policy& policy, int64_t kv_head, int64_t budget,
           MatrixView head_scores, MatrixView norms, const HeadCache& cache);

  /// Notes the entry that was just appended to the cache.
  void enter(const HeadCache& cache);
  /// Outputs of the group's queries [group_size, head_dim]; scores take in what they paid.
  Matrix attend(MatrixView queries, const HeadCache& cache);
  /// The entry that has to leave, if one has to. Of those not always kept the one of smallest score; with `critical`, of
  /// smallest stage-two score among those outside stage one. Ties: the larger position leaves.
  std::optional<int64_t> who_leaves(const HeadCache& cache, int64_t newest) const;
  /// Forgets the entry; before it is removed from the cache.
  void leave(int64_t entry);
  /// Notes that an entry's value is another now; its score stays.
  void revalue(int64_t entry, const HeadCache& cache);

  /// Whether entries have scores; with streaming-llm they have none.
  bool is_scored() const { return rules_.window > 0; }
  /// The running scores per query head, as the cache is now, [group_size, entries]; not reduced over the group.
  MatrixView head_scores() const { return there(scores_); }
  /// Projected value norms, with `critical`; likewise.
  MatrixView norms() const { return there(norms_); }

 private:
  MatrixView there(const Matrix& matrix) const { return matrix.view().middle_cols(0, entries_); }
  void take_in(MatrixView contributions);
  std::vector<double> reduced_scores() const;
  std::vector<int64_t> outside_stage_one(std::vector<int64_t> candidates, const HeadCache& cache,
                                         const Critical& options, VectorView scores) const;
  int64_t adaptive_count(const std::vector<int64_t>& ranked, int64_t staying) const;

  Policy policy_;
  HostRules rules_;
  int64_t budget_;
  double scale_;
  int64_t group_size_;
  int64_t entries_;
  MatrixView output_projection_;    // [group_size * head_dim, model_dim]
  std::vector<ValueSpace> spaces_;  // [group_size], where changes are scored
  // Columns are entries, with room for one more than there are, and than the budget.
  Matrix scores_;         // [group_size, ...]
  Matrix squared_norms_;  // likewise, where changes are scored
  Matrix norms_;          // likewise, projected value norms, with `critical`
  Matrix weights_;        // A of the last step [group_size, entries], with an adaptive stage one
};

}  // namespace kvbound::reference
