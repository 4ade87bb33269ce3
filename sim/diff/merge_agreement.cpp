#include "merge_agreement.hpp"

#include <numeric>
#include <optional>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/parallel.hpp>

#include "choice.hpp"
#include "forced_merges.hpp"
#include "merge_replay.hpp"
#include "merged_agreement.hpp"
#include "rebuild_agreement.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

// Number of rows of all rebuilt caches.
int64_t rows_in(const std::vector<RebuiltLayer>& rebuilt) {
  int64_t rows = 0;
  for (const RebuiltLayer& layer : rebuilt) rows = std::reduce(layer.rows.begin(), layer.rows.end(), rows);
  return rows;
}

// Number of rows that are claimed; nullopt if none are.
std::optional<int64_t> claimed_rows(const MergedClaims& claims) {
  for (const RealClaim* claim : {claims.votes, claims.keys, claims.values}) {
    if (claim) return claim->shape.front();
  }
  return std::nullopt;
}

class MergeJudge {
 public:
  MergeJudge(const MergedLayer& part, const std::vector<Positions>& teacher_forced, const LayerClaims& claims)
      : part_(part),
        claims_(claims),
        shape_(part.layer.shape),
        steps_(part.implementation.steps),
        heads_(teacher_forced.size()) {
    reference::parallel_for(shape_.kv_heads, [&](int64_t g) {
      const int64_t index = g;
      heads_[index].emplace(part_, g, teacher_forced[index],
                            teacher_forced[index] == part_.reference.kept[index]);
    });
    result_.record.prompt.kept = teacher_forced;
  }

  // rebuilt: the judgement of the rebuilds' selections
  MergeJudgement judge(const TensorAgreement& rebuilt) {
    if (claims_.target_of) add_choices("target_of", &MergeReplay::targets, {});
    judge_prompt_entries();
    for (const auto& head : heads_) result_.record.prompt.merges.push_back(head->merged());
    replay(rebuilt);
    return std::move(result_);
  }

 private:
  // Judgements of the entries' clusters, of all KV heads together, beside that of which entries were kept.
  void add_choices(const char* tensor, const std::vector<Choice>& (MergeReplay::*choices)() const,
                   const TensorAgreement& kept) {
    ChoiceTally tally(tensor, kept);
    for (const auto& head : heads_) {
      for (const Choice& choice : ((*head).*choices)()) tally.add(choice);
    }
    result_.agreements.push_back(tally.result());
  }

  void judge_prompt_entries() {
    MergedAgreement merged = agreement_of(prompt_claims(claims_));
    for (size_t g = 0; g < heads_.size(); ++g) {
      if (part_.first_rows[g]) {
        merged.add(heads_[g]->prompt_entries());
      } else {
        merged.skip(claimed_entries(g));
      }
    }
    merged.append("", result_.agreements);
  }

  void judge_rebuilt_entries() {
    const MergedClaims claims = rebuilt_claims(claims_);
    MergedAgreement merged = agreement_of(claims);
    const int64_t claimed = claimed_rows(claims).value_or(0);
    if (claimed != rows_in(part_.rebuilt)) {
      merged.skip(claimed);
      merged.append("rebuilt_", result_.agreements);
      return;
    }
    for (size_t r = 0; r < heads_.front()->rebuilt_entries().size(); ++r) {
      for (size_t g = 0; g < heads_.size(); ++g) {
        const ExpectedEntries& entries = heads_[g]->rebuilt_entries()[r];
        if (part_.rebuilt[r].first_rows[g]) {
          merged.add(entries);
        } else {
          merged.skip(part_.rebuilt[r].rows[g]);
        }
      }
    }
    merged.append("rebuilt_", result_.agreements);
  }

  void judge_step_entries(const std::vector<std::vector<MergeStep>>& steps) {
    MergedAgreement merged = agreement_of(step_claims(claims_));
    for (int64_t t = 0; t < steps_; ++t) {
      for (const std::vector<MergeStep>& head : steps) {
        const MergeStep& step = head[t];
        if (!step.followed) {
          merged.skip(1);
        } else if (step.merged.members.empty()) {
          merged.add_nothing();
        } else {
          merged.add(step.merged);
        }
      }
    }
    merged.append("step_", result_.agreements);
  }

  MergedAgreement agreement_of(const MergedClaims& claims) const {
    return {claims, shape_.head_dim, rules_of(part_.implementation.policy.merge).votes};
  }

  // Number of this KV head's rows in the claimed tensors.
  int64_t claimed_entries(size_t g) const {
    return std::ssize(claims_.kept ? (*claims_.kept)[g] : result_.record.prompt.kept[g]);
  }

  void replay(const TensorAgreement& rebuilt) {
    const bool dynamic = evicts(part_.implementation.policy.host);
    std::vector<std::vector<MergeStep>> steps(heads_.size());
    reference::parallel_for(shape_.kv_heads, [&](int64_t g) {
      const auto at = [&](const std::optional<std::vector<int64_t>>& claims, int64_t t) {
        return claims ? std::optional((*claims)[t * shape_.kv_heads + g]) : std::nullopt;
      };
      for (int64_t t = 0; t < steps_; ++t) {
        steps[g].push_back(heads_[g]->step(t, {at(claims_.evicted, t), at(claims_.merged_into, t)}));
      }
    });
    ChoiceTally evicted("evicted"), into("merged_into");
    result_.output_errors = Tensor(steps_, shape_.query_heads, shape_.head_dim);
    for (int64_t t = 0; t < steps_; ++t) {
      StepRecord& record = result_.record.steps.emplace_back();
      record.output = Matrix(shape_.query_heads, shape_.head_dim);
      for (int64_t g = 0; g < shape_.kv_heads; ++g) {
        const MergeStep& step = steps[g][t];
        for (int64_t i = 0; i < shape_.group_size(); ++i) {
          const int64_t h = g * shape_.group_size() + i;
          std::ranges::copy(step.output.row(i), record.output.row(h).begin());
          std::ranges::copy(step.errors.row(i), result_.output_errors.slice(t).row(h).begin());
        }
        result_.certain.push_back(step.certain);
        record.rebuilt = step.rebuilt;
        if (step.rebuilt) record.merges.emplace_back().positions = step.positions;
        if (!dynamic) continue;
        record.evicted.push_back(step.evicted.teacher_forced);
        evicted.add(step.evicted);
        into.add(step.into);
      }
    }
    // Rebuilds depend on no earlier choice, but later choices and outputs depend on them.
    if (claims_.rebuilt_target_of) add_choices("rebuilt_target_of", &MergeReplay::rebuilt_targets, rebuilt);
    judge_rebuilt_entries();
    if (claims_.evicted) result_.agreements.push_back(evicted.result());
    if (claims_.merged_into) result_.agreements.push_back(into.result());
    judge_step_entries(steps);
    if (claims_.output) judge_output(*claims_.output);
  }

  void judge_output(const RealClaim& claim) {
    Expected expected;
    for (int64_t t = 0; t < steps_; ++t) {
      const Matrix& output = result_.record.steps[t].output;
      for (int64_t h = 0; h < shape_.query_heads; ++h) {
        expected.add(output.row(h), result_.output_errors.slice(t).row(h),
                     result_.certain[t * shape_.kv_heads + shape_.kv_head_of(h)]);
      }
    }
    result_.agreements.push_back(
        compare_uncertain("output", claim, expected.numbers, expected.bounds, expected.certain));
  }

  const MergedLayer& part_;
  const LayerClaims& claims_;
  const LayerShape shape_;
  const int64_t steps_;
  std::vector<std::optional<MergeReplay>> heads_;
  MergeJudgement result_;
};

// Where each KV head's rows of the claims on the cache after the prompt begin; nullopt where its claimed kept set is not the
// one that is followed, so that the rows are of other entries.
std::vector<std::optional<int64_t>> first_rows(const std::vector<Positions>& teacher_forced,
                                               const LayerClaims& claims) {
  const std::vector<Positions>& claimed = claims.kept ? *claims.kept : teacher_forced;
  std::vector<std::optional<int64_t>> rows;
  int64_t first = 0;
  for (size_t g = 0; g < teacher_forced.size(); ++g) {
    rows.push_back(claimed[g] == teacher_forced[g] ? std::optional(first) : std::nullopt);
    first += std::ssize(claimed[g]);
  }
  return rows;
}

}  // namespace

std::vector<bool> MergeJudgement::certain_query_heads(const LayerShape& shape) const {
  std::vector<bool> all;
  for (const bool kv_head : certain) all.insert(all.end(), static_cast<size_t>(shape.group_size()), kv_head);
  return all;
}

std::vector<bool> MergeJudgement::certain_steps(const LayerShape& shape) const {
  std::vector<bool> all(certain.size() / static_cast<size_t>(shape.kv_heads), true);
  for (size_t i = 0; i < certain.size(); ++i) {
    const size_t step = i / static_cast<size_t>(shape.kv_heads);
    all[step] = all[step] && certain[i];
  }
  return all;
}

MergeJudgement judge_merging(const traces::Layer& layer, const TestedImplementation& implementation,
                             const PromptRecord& reference, const PromptErrors& errors,
                             const std::vector<Positions>& teacher_forced, const LayerClaims& claims) {
  MergedLayer part{layer, implementation, reference, errors, layer.prompt()};
  part.first_rows = first_rows(teacher_forced, claims);
  part.forced_prompt = ForcedMerges(prompt_claims(claims), implementation.merged_storage);
  part.forced_rebuilds = ForcedMerges(rebuilt_claims(claims), implementation.merged_storage);
  part.forced_steps = ForcedMerges(step_claims(claims), implementation.merged_storage);
  RebuildJudgement rebuilds = judge_rebuilds(layer, implementation, claims.rebuilt_target_of);
  part.rebuilt = std::move(rebuilds.rebuilt);
  // With budgets that are wrong in sum it is not known which rows are of which head.
  if (claimed_rows(rebuilt_claims(claims)) != rows_in(part.rebuilt)) part.forced_rebuilds = {};
  if (claims.target_of) part.target_of = *claims.target_of;
  const MergeRules rules = rules_of(implementation.policy.merge);
  reference::LayerScores known(nullptr);
  if (rules.averages()) {
    part.averages = &known.predicted(part.prompt, *rules.prediction);
    part.log_sum_exp_errors = reference::window_log_sum_exp_errors(part.prompt, part.prompt.window_queries(),
                                                                   implementation.arithmetic.attention);
  }
  return MergeJudge(part, teacher_forced, claims).judge(rebuilds.agreement);
}

}  // namespace kvbound::sim
