// One KV head's cache as a tested implementation's own choices produce it, with bounds on the errors of the
// tested implementation's numbers, and the judgement of each choice on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/session/head_stepper.hpp>
#include <kvbound/sim/diff/claims/tested_implementation.hpp>
#include <kvbound/sim/diff/judge/choice.hpp>
#include <kvbound/sim/diff/judge/evictions.hpp>
#include <kvbound/sim/diff/judge/exact_rows.hpp>
#include <kvbound/sim/diff/judge/merge_choice.hpp>
#include <kvbound/sim/diff/judge/merged_entries.hpp>
#include <kvbound/sim/diff/judge/merged_errors.hpp>
#include <kvbound/sim/diff/judge/prompt_errors.hpp>
#include <kvbound/sim/diff/judge/spread_rule.hpp>
#include <kvbound/sim/diff/judge/target_rule.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// A layer's cache as it is rebuilt at one step, for all KV heads.
struct RebuiltLayer {
  LayerView view;                          ///< all entries so far; the step's queries
  std::vector<std::vector<int64_t>> kept;  ///< [kv_heads]: the selection that the replay continues with
  std::span<const int64_t> target_of =
      {};  ///< [kv_heads, n + steps]: as recorded; empty: nothing is recorded
  /// [kv_heads]: how many rows of the claims on rebuilt caches are of this one, and the first; nullopt: they
  /// are of other entries than those of the selection.
  std::vector<int64_t> rows = {};
  std::vector<std::optional<int64_t>> first_rows = {};
};

/// Data that the KV heads of a layer share. The references must outlive the object.
struct ReplayedLayer {
  const traces::Layer& layer;
  const TestedImplementation& implementation;
  const PromptRecord& reference;
  const PromptErrors& errors;
  LayerView prompt;
  EvictionSizes sizes;
  const std::vector<reference::ScoreEma>* averages = nullptr;  ///< after the prompt, for merges that average
  Matrix log_sum_exp_errors = {};           ///< [query_heads, window_queries], for merges that average
  std::span<const int64_t> target_of = {};  ///< [kv_heads, n]: as recorded; empty: nothing is recorded
  std::vector<RebuiltLayer> rebuilt = {};   ///< for policies with a period: every rebuild
  /// The claimed numbers that the replay continues with: of the caches after the prompt and after rebuilds,
  /// and of the entries that evicted ones merged into, [steps, kv_heads].
  ExactRows exact_prompt = {}, exact_rebuilds = {}, exact_steps = {};
  std::vector<std::optional<int64_t>> first_rows =
      {};  ///< [kv_heads]: of the claims on the cache after the prompt, likewise
};

/// One KV head's cache at a step, with the step's own entry, as the step's queries attend to it.
struct AttendedCache {
  int64_t step = 0;
  int64_t kv_head = 0;
  MatrixView queries;  ///< [group_size, head_dim]
  const reference::HeadCache& cache;
  const Matrix& output;                      ///< [group_size, head_dim]: the reference's
  const reference::AttentionErrors& errors;  ///< bounds for the tested implementation's
  bool certain = true;  ///< whether the cache is certain to be the tested implementation's
};
using Attended = std::function<void(const AttendedCache&)>;

/// The judgement of the tested implementation's choices at a step.
struct ReplayedStep {
  bool rebuilt = false;            ///< whether the cache was rebuilt before its queries attended
  std::vector<int64_t> positions;  ///< of a rebuilt cache, ascending
  std::vector<int64_t> target_of;  ///< of a rebuilt cache: every entry's target
  Choice evicted, into;            ///< for hosts that evict; `into` for policies that merge
  ExpectedEntries merged;          ///< the entry that the evicted one merged into, if it did
  bool followed = true;  ///< whether the claimed row is that entry's: the claimed choices were followed
};

/// The claimed choices of a step; nullopt where none is claimed.
struct ClaimedStep {
  std::optional<int64_t> evicted, into;
};

/// Replays one KV head from the prompt's end through the decode steps. Without merging its entries are the
/// layer's own, which have no errors.
class HeadReplay {
 public:
  /// kept       ascending: the tested implementation's kept positions
  /// explained  whether they equal the reference's, so that its clusters are known with order=merge-first
  HeadReplay(const ReplayedLayer& part, int64_t kv_head, const std::vector<int64_t>& kept, bool explained);
  HeadReplay(const HeadReplay&) = delete;  // members refer to each other
  HeadReplay& operator=(const HeadReplay&) = delete;

  /// The cache after the prompt, by ascending position; for policies that merge.
  const HeadMerge& merged() const { return merged_; }
  /// The same, and that of all rebuilds so far, with error bounds.
  const ExpectedEntries& prompt_entries() const { return prompt_entries_; }
  const std::vector<ExpectedEntries>& rebuilt_entries() const { return rebuilt_entries_; }
  /// [n]: the judgement of the recorded clusters; empty if none are recorded.
  const std::vector<Choice>& targets() const { return targets_; }
  /// The same of all rebuilds so far, one after the other.
  const std::vector<Choice>& rebuilt_targets() const { return rebuilt_targets_; }

  /// Whether a step's cache depends on no choice of an earlier step, so that steps can be skipped.
  bool is_static() const { return !rules_.evicts && !merge_rules_.period; }
  /// Takes in a step's entry without its queries, if the cache is static.
  void skip(int64_t t);
  /// Replays the next step.
  ///
  /// attended  called when the step's queries have attended; null: nothing that depends on outputs is wanted
  ReplayedStep step(int64_t t, const ClaimedStep& claimed, const Attended& attended = {});

 private:
  void fill_prompt(const std::vector<int64_t>& kept, bool explained);
  reference::MergeTargets prompt_targets(const std::vector<int64_t>& kept, bool explained);
  reference::MergeTargets recorded_targets(const std::vector<int64_t>& kept);
  // The claims on a cache as it is filled, and the first row of its entries; nullopt: no rows are of them.
  struct ClaimedCache {
    const ExactRows& rows;
    std::optional<int64_t> first;
  };
  void fill(const LayerView& view, const reference::MergeTargets& targets, const reference::ScoreEma* known,
            const ClaimedCache& claimed);
  void derive_cluster_errors(const LayerView& view, const reference::ScoreEma* known,
                             const ClaimedCache& claimed);
  void count_members(const reference::MergeTargets& targets);
  ExpectedEntries expected_entries() const;
  void force(const ClaimedCache& claimed);
  void force(int64_t position, const ExactEntry& exact);
  void force_step(int64_t t, const ClaimedStep& claimed, ReplayedStep& result);
  void derive_spread_errors(const Cam& cam, const LayerView& view);
  void begin_evicting(const LayerView& view, MatrixView head_scores, MatrixView head_errors);
  void rebuild(int64_t t);
  void attend(int64_t t, const Attended& attended);
  void choose(int64_t t, const ClaimedStep& claimed, ReplayedStep& result);
  void choose_target(int64_t t, const ClaimedStep& claimed, ReplayedStep& result);
  Choice judge_into(int64_t t, int64_t leaving, const std::optional<int64_t>& claimed);
  void evict(int64_t t, int64_t entry, int64_t into, ExpectedEntries& merged);
  void merge(int64_t t, int64_t entry, int64_t into, ExpectedEntries& merged);
  int64_t step_row(int64_t t) const { return t * layer_.shape.kv_heads + g_; }
  void spread(const Cam& cam, int64_t entry, int64_t into);
  void revalue(int64_t entry);
  const reference::HeadCache& cache() const { return stepper_.cache(); }
  MatrixView group(MatrixView rows) const { return layer_.shape.group_rows(rows, g_); }
  MatrixView last_queries(const LayerView& view) const;
  reference::ClusterMembers members_at(const std::vector<int64_t>& positions) const;

  const ReplayedLayer& part_;
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
  std::optional<Evictions> evictions_;  // for hosts that evict
  MeanAttention attention_;             // the step's, with CaM
  MatrixView queries_;                  // the step's [group_size, head_dim]
};

}  // namespace kvbound::sim
