// A layer's caches as a tested implementation's own choices produce them, and how its choices and merged
// entries compare with the reference's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/session/layer_scores.hpp>
#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>
#include <kvbound/sim/diff/claims/followed_choices.hpp>
#include <kvbound/sim/diff/claims/tested_implementation.hpp>
#include <kvbound/sim/diff/judge/prompt_errors.hpp>
#include <kvbound/sim/measure/layer_record.hpp>
#include <kvbound/traces/trace.hpp>

#include "head_replay.hpp"
#include "rebuilds.hpp"

namespace kvbound::sim {

/// The reference's outputs over the replayed caches.
struct ReplayedOutputs {
  ReplayedOutputs(const LayerShape& shape, int64_t steps);

  /// Takes in the outputs of one KV head at one step.
  void add(const AttendedCache& attended);
  /// How the claimed outputs agree with the replay's.
  ///
  /// merges  whether the policy merges, so that some of the outputs may be uncertain
  TensorAgreement agreement(const RealClaim& claim, bool merges) const;
  /// The replay's outputs of all steps, [steps, query_heads, head_dim].
  std::vector<double> expected() const;

  std::vector<Matrix> output,
      errors;                 ///< [steps] of [query_heads, head_dim]; bounds for the tested implementation's
  std::vector<char> certain;  ///< [steps * kv_heads]: AttendedCache::certain
};

/// Replays one layer from the claims, for any policy: one that drops evicted entries is one without merges.
///
/// Every eviction is judged on the cache that the earlier choices produced (judge/evictions.hpp); where a
/// host evicts and no evictions are claimed, the replay evicts the reference's own choice. An eviction that
/// is impossible is a fault: of an entry that is not in the cache, or none where the budget requires one. The
/// replay then evicts the reference's own choice, too.
///
/// Where the clusters of the prompt's end are recorded (target_of), they are judged (judge/clusters.hpp) and
/// followed, and so are the selections and clusters of rebuilds (rebuilds.hpp). Where they are not, the
/// replay uses those that the reference forms on the tested implementation's kept set. A kept entry is then
/// uncertain if rounding alone could change which entries merge into it (judge/target_rule.hpp); its KV head
/// is then uncertain from there on. The votes of an uncertain entry must be possible, and its numbers that
/// differ from the reference's are undecided. With order=merge-first a KV head is then uncertain from the
/// prompt's end, and with a period from the first rebuild.
///
/// A target is legal if no other possible target had a clearly larger cosine and its own cosine is not
/// clearly below the threshold. Dropping is legal if no cosine is clearly above the threshold. With CaM,
/// spreading and dropping are both legal where rounding decides the draw.
///
/// Each claimed entry of the cache after the prompt, after a rebuild, and after a decode step's merge is
/// judged against the merge of the tested implementation's own members, by bounds derived for its arithmetic
/// (reference/bounds/merge_cluster_errors.md); where there is no finite bound it is undecided. The replay
/// then continues with the claimed numbers (judge/exact_rows.hpp), so that bounds do not compound. A row that
/// claims an entry of a choice that cannot be followed is undecided.
class LayerReplay {
 public:
  /// All arguments must outlive the object.
  ///
  /// reference  the reference's record, with the tested implementation's budgets
  /// kept       [kv_heads]: the kept sets, as the tested implementation recorded them
  /// throws     NonFinite
  LayerReplay(const traces::Layer& layer, const TestedImplementation& implementation,
              const PromptRecord& reference, const PromptErrors& errors,
              const std::vector<std::vector<int64_t>>& kept, const LayerClaims& claims);
  LayerReplay(const LayerReplay&) = delete;  // parts refer to each other
  LayerReplay& operator=(const LayerReplay&) = delete;

  /// A KV head's entries after the prompt, as its claims are judged, with error bounds;
  /// for policies that merge.
  const ExpectedEntries& prompt_entries(int64_t kv_head) const { return heads_[kv_head]->prompt_entries(); }

  /// Replays all steps.
  ///
  /// attended  called for every step and KV head, on any thread; null: outputs are not wanted
  void run(const Attended& attended = {});

  /// Those claimed of target_of, votes, merged_key, merged_value, rebuilt_*, evicted, merged_into and step_*,
  /// in the order of dump_tensors(); after run.
  std::vector<TensorAgreement> agreements() const;
  /// The tested implementation's choices, as a session records them; after run. Its outputs are
  /// those of `outputs`, if any.
  LayerRecord record(const ReplayedOutputs* outputs) const;
  /// The choices that were followed; after run.
  FollowedChoices followed() const;

 private:
  const ReplayedStep& step(int64_t t, int64_t g) const { return steps_[g][t]; }
  void add_choices(const char* tensor, const std::vector<Choice>& (HeadReplay::*choices)() const,
                   int64_t tokens, const TensorAgreement& kept, std::vector<TensorAgreement>& all) const;
  void add_steps(const char* tensor, Choice ReplayedStep::*choice, std::vector<TensorAgreement>& all) const;
  void judge_prompt_entries(std::vector<TensorAgreement>& all) const;
  void judge_rebuilt_entries(std::vector<TensorAgreement>& all) const;
  void judge_step_entries(std::vector<TensorAgreement>& all) const;

  ReplayedLayer part_;
  const LayerClaims& claims_;
  const std::vector<std::vector<int64_t>>& kept_;
  const LayerShape shape_;
  const int64_t kv_heads_, step_count_;
  const MergeRules merging_;
  reference::LayerScores known_;
  TensorAgreement rebuilt_;  // of rebuilt_target_of, as far as it says what was kept
  std::vector<std::optional<HeadReplay>> heads_;
  std::vector<std::vector<int64_t>> target_of_;   // [kv_heads]: after the prompt
  std::vector<std::vector<ReplayedStep>> steps_;  // [kv_heads] of [steps]
};

}  // namespace kvbound::sim
