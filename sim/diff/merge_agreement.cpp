#include "merge_agreement.hpp"

#include <cmath>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/numerics/parallel.hpp>

#include "choice.hpp"
#include "merge_replay.hpp"
#include "rebuild_agreement.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

// Expected numbers of one tensor, their error bounds, and whether each is certain.
struct Expected {
  std::vector<double> numbers, bounds;
  std::vector<bool> certain;

  void add(VectorView row, VectorView errors, bool sure) {
    numbers.insert(numbers.end(), row.begin(), row.end());
    bounds.insert(bounds.end(), errors.begin(), errors.end());
    certain.insert(certain.end(), row.size(), sure);
  }
};

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
    for (size_t g = 0; g < teacher_forced.size(); ++g) {
      known_.push_back(!claims.kept || (*claims.kept)[g] == teacher_forced[g]);
    }
    result_.record.prompt.kept = teacher_forced;
  }

  // rebuilt: the judgement of the rebuilds' selections
  MergeJudgement judge(const TensorAgreement& rebuilt) {
    if (claims_.target_of) add_choices("target_of", &MergeReplay::targets, {});
    if (claims_.votes) judge_votes(*claims_.votes);
    judge_rows("merged_key", claims_.merged_key, &HeadMerge::keys, &MergeReplay::key_errors);
    judge_rows("merged_value", claims_.merged_value, &HeadMerge::values, &MergeReplay::value_errors);
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

  void judge_votes(const RealClaim& claim) {
    Expected expected;
    size_t at = 0;
    for (size_t g = 0; g < heads_.size(); ++g) {
      for (size_t i = 0; i < claimed_entries(g); ++i, ++at) {
        if (!known_[g]) {
          expected.add(std::vector{0.0}, std::vector{kInfinity}, false);
          continue;
        }
        const MemberRange range = heads_[g]->members()[i];
        const bool votes = rules_of(part_.implementation.policy.merge).votes;
        const double vote = claim.numbers[at];
        const bool possible = votes && vote >= 1 + static_cast<double>(range.least) &&
                              vote <= 1 + static_cast<double>(range.most) && vote == std::floor(vote);
        const std::vector<double> own{heads_[g]->merged().votes[i]};
        expected.add(own, std::vector{0.0}, heads_[g]->is_certain(i) || !possible);
      }
    }
    add("votes", claim, expected);
  }

  void judge_rows(const char* tensor, const std::optional<RealClaim>& claim, Matrix HeadMerge::*rows,
                  std::vector<double> (MergeReplay::*errors)(size_t) const) {
    if (!claim) return;
    Expected expected;
    const std::vector<double> nothing(shape_.head_dim), unbounded(nothing.size(), kInfinity);
    for (size_t g = 0; g < heads_.size(); ++g) {
      for (size_t i = 0; i < claimed_entries(g); ++i) {
        if (!known_[g]) {
          expected.add(nothing, unbounded, false);
          continue;
        }
        expected.add((heads_[g]->merged().*rows).row(i), ((*heads_[g]).*errors)(i), heads_[g]->is_certain(i));
      }
    }
    add(tensor, *claim, expected);
  }

  // Number of this KV head's rows in the claimed tensors.
  size_t claimed_entries(size_t g) const {
    return claims_.kept ? (*claims_.kept)[g].size() : result_.record.prompt.kept[g].size();
  }

  void add(const char* tensor, const RealClaim& claim, const Expected& expected) {
    result_.agreements.push_back(
        compare_uncertain(tensor, claim, expected.numbers, expected.bounds, expected.certain));
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
    if (claims_.evicted) result_.agreements.push_back(evicted.result());
    if (claims_.merged_into) result_.agreements.push_back(into.result());
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
    add("output", claim, expected);
  }

  const MergedLayer& part_;
  const LayerClaims& claims_;
  const LayerShape shape_;
  const int64_t steps_;
  std::vector<std::optional<MergeReplay>> heads_;
  std::vector<bool>
      known_;  // [kv_heads]: whether the claimed kept set is the teacher-forced one, so that rows correspond
  MergeJudgement result_;
};

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
  RebuildJudgement rebuilds = judge_rebuilds(layer, implementation, claims.rebuilt_target_of);
  part.rebuilt = std::move(rebuilds.rebuilt);
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
