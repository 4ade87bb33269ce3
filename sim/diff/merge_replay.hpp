// One KV head's merged cache as a tested implementation's own choices produce it, with bounds on the errors of the
// tested implementation's numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/session/head_stepper.hpp>
#include <kvbound/traces/trace.hpp>

#include "choice.hpp"
#include "forced_merges.hpp"
#include "merged_agreement.hpp"
#include "merged_errors.hpp"
#include "merged_evictions.hpp"
#include "prompt_errors.hpp"
#include "spread_ambiguity.hpp"
#include "target_agreement.hpp"
#include "target_ambiguity.hpp"
#include "tested_implementation.hpp"

namespace kvbound::sim {

/// A layer's cache as it is rebuilt at one step, for all KV heads.
struct RebuiltLayer {
  LayerView view;                          ///< all entries so far; the step's queries
  std::vector<std::vector<int64_t>> kept;  ///< [kv_heads]: the selection that the replay continues with
  std::span<const int64_t> target_of =
      {};  ///< [kv_heads, n + steps]: as recorded; empty: nothing is recorded
  /// [kv_heads]: how many rows of the claims on rebuilt caches are of this one, and the first; nullopt: they are of other
  /// entries than those of the selection.
  std::vector<int64_t> rows = {};
  std::vector<std::optional<int64_t>> first_rows = {};
};

/// Data that the KV heads of a layer share, for a policy that merges. The references must outlive the object.
struct MergedLayer {
  const traces::Layer& layer;
  const TestedImplementation& implementation;
  const PromptRecord& reference;
  const PromptErrors& errors;
  LayerView prompt;
  const std::vector<reference::ScoreEma>* averages = nullptr;  ///< after the prompt, for methods that average
  Matrix log_sum_exp_errors = {};           ///< [query_heads, window_queries], for methods that average
  std::span<const int64_t> target_of = {};  ///< [kv_heads, n]: as recorded; empty: nothing is recorded
  std::vector<RebuiltLayer> rebuilt = {};   ///< for policies with a period: every rebuild
  /// The claimed numbers that the replay continues with: of the caches after the prompt and after rebuilds, and of the entries
  /// that evicted ones merged into, [steps, kv_heads].
  ForcedMerges forced_prompt = {}, forced_rebuilds = {}, forced_steps = {};
  std::vector<std::optional<int64_t>> first_rows =
      {};  ///< [kv_heads]: of the claims on the cache after the prompt, likewise
};

/// One step's outputs over the replayed cache, and the judgement of the tested implementation's choices at that step.
struct MergeStep {
  Matrix output, errors;           ///< [group_size, head_dim]
  bool certain = true;             ///< whether the cache is certain to be the tested implementation's
  bool rebuilt = false;            ///< whether the cache was rebuilt before the outputs
  std::vector<int64_t> positions;  ///< of a rebuilt cache, ascending
  Choice evicted, into;            ///< for hosts that evict
  ExpectedEntries merged;          ///< the entry that the evicted one merged into, if it did
  bool followed = true;  ///< whether the claimed row is that entry's: the claimed choices were followed
};

/// The claimed choices of a step; nullopt where none is claimed.
struct ClaimedStep {
  std::optional<int64_t> evicted, into;
};

/// Replays one KV head from the prompt's end through the decode steps.
class MergeReplay {
 public:
  /// kept       ascending: the tested implementation's kept positions
  /// explained  whether they equal the reference's, so that its clusters are known with order=merge-first
  MergeReplay(const MergedLayer& part, int64_t kv_head, const std::vector<int64_t>& kept, bool explained);
  MergeReplay(const MergeReplay&) = delete;  // members refer to each other
  MergeReplay& operator=(const MergeReplay&) = delete;

  /// The cache after the prompt, by ascending position.
  const HeadMerge& merged() const { return merged_; }
  /// The same, and that of all rebuilds so far, with error bounds.
  const ExpectedEntries& prompt_entries() const { return prompt_entries_; }
  const std::vector<ExpectedEntries>& rebuilt_entries() const { return rebuilt_entries_; }
  /// [n]: the judgement of the recorded clusters; empty if none are recorded.
  const std::vector<Choice>& targets() const { return targets_; }
  /// The same of all rebuilds so far, one after the other.
  const std::vector<Choice>& rebuilt_targets() const { return rebuilt_targets_; }
  /// Replays the next step.
  MergeStep step(int64_t t, const ClaimedStep& claimed);

 private:
  reference::MergeTargets prompt_targets(const std::vector<int64_t>& kept, bool explained);
  reference::MergeTargets recorded_targets(const std::vector<int64_t>& kept);
  void fill(const LayerView& view, const reference::MergeTargets& targets, const reference::ScoreEma* known);
  void derive_cluster_errors(const LayerView& view, const reference::ScoreEma* known);
  void count_members(const reference::MergeTargets& targets);
  ExpectedEntries expected_entries() const;
  void force(const ForcedMerges& forced, const std::vector<std::optional<int64_t>>& first_rows);
  void force(int64_t position, const ForcedEntry& forced);
  void force_step(int64_t t, const ClaimedStep& claimed, MergeStep& result);
  void derive_spread_errors(const Cam& cam, const LayerView& view);
  void begin_evicting(const LayerView& view, MatrixView head_scores, MatrixView head_errors);
  void rebuild(int64_t t);
  void attend(MergeStep& result);
  void choose(int64_t t, const ClaimedStep& claimed, MergeStep& result);
  Choice judge_into(int64_t t, int64_t leaving, const std::optional<int64_t>& claimed);
  void evict(int64_t entry, int64_t into, ExpectedEntries& merged);
  void merge(int64_t entry, int64_t into, ExpectedEntries& merged);
  void spread(const Cam& cam, int64_t entry, int64_t into);
  const reference::HeadCache& cache() const { return stepper_.cache(); }
  MatrixView group(MatrixView rows) const { return layer_.shape.group_rows(rows, g_); }
  MatrixView last_queries(const LayerView& view) const;
  reference::ClusterMembers members_at(const std::vector<int64_t>& positions) const;

  const MergedLayer& part_;
  const traces::Layer& layer_;
  const Policy& policy_;
  const reference::Arithmetic& arithmetic_;
  const int64_t g_, group_size_, budget_;
  const HostRules rules_;
  const MergeRules merge_rules_;
  bool certain_ = true;
  std::vector<MemberRange> members_;  // [kept]
  std::vector<Choice> targets_, rebuilt_targets_;
  HeadMerge merged_;  // as of the prompt's end, or of the last rebuild
  ExpectedEntries prompt_entries_;
  std::vector<ExpectedEntries> rebuilt_entries_;
  reference::HeadStepper stepper_;
  MergedErrors errors_;
  std::optional<MergedEvictions> evictions_;  // for hosts that evict
  MeanAttention attention_;                   // the step's, with CaM
  MatrixView queries_;                        // the step's [group_size, head_dim]
};

}  // namespace kvbound::sim
