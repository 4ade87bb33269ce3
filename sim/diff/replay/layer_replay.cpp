#include "layer_replay.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/sim/diff/judge/choice.hpp>
#include <kvbound/sim/diff/judge/exact_rows.hpp>
#include <kvbound/sim/diff/judge/merged_entries.hpp>

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

// Where each KV head's rows of the claims on the cache after the prompt begin; nullopt where its claimed kept
// set is not the one that is followed, so that the rows are of other entries.
std::vector<std::optional<int64_t>> first_rows(const std::vector<Positions>& kept,
                                               const LayerClaims& claims) {
  const std::vector<Positions>& claimed = claims.kept ? *claims.kept : kept;
  std::vector<std::optional<int64_t>> rows;
  int64_t first = 0;
  for (size_t g = 0; g < kept.size(); ++g) {
    rows.push_back(claimed[g] == kept[g] ? std::optional(first) : std::nullopt);
    first += std::ssize(claimed[g]);
  }
  return rows;
}

}  // namespace

ReplayedOutputs::ReplayedOutputs(const LayerShape& shape, int64_t steps)
    : output(steps, Matrix(shape.query_heads, shape.head_dim)),
      errors(output),
      certain(static_cast<size_t>(steps * shape.kv_heads)) {}

void ReplayedOutputs::add(const AttendedCache& attended) {
  const int64_t group_size = attended.output.rows(), t = attended.step;
  for (int64_t i = 0; i < group_size; ++i) {
    const int64_t h = attended.kv_head * group_size + i;
    std::ranges::copy(attended.output.row(i), output[t].row(h).begin());
    std::ranges::copy(attended.errors.output.row(i), errors[t].row(h).begin());
  }
  certain[t * (output[t].rows() / group_size) + attended.kv_head] = attended.certain;
}

TensorAgreement ReplayedOutputs::agreement(const RealClaim& claim, bool merges) const {
  const std::vector<double> expected = this->expected();
  std::vector<double> bounds;
  for (const Matrix& of_step : errors) std::ranges::copy(of_step.numbers(), std::back_inserter(bounds));
  if (!merges) return compare("output", claim, expected, bounds);
  std::vector<bool> sure;
  for (const char head : certain) sure.insert(sure.end(), expected.size() / certain.size(), head != 0);
  return compare_uncertain("output", claim, expected, bounds, sure);
}

std::vector<double> ReplayedOutputs::expected() const {
  std::vector<double> all;
  for (const Matrix& of_step : output) std::ranges::copy(of_step.numbers(), std::back_inserter(all));
  return all;
}

LayerReplay::LayerReplay(const traces::Layer& layer, const TestedImplementation& implementation,
                         const PromptRecord& reference, const PromptErrors& errors,
                         const std::vector<Positions>& kept, const LayerClaims& claims)
    : part_{layer, implementation, reference, errors, layer.prompt(), EvictionSizes(layer, implementation)},
      claims_(claims),
      kept_(kept),
      shape_(layer.shape),
      kv_heads_(shape_.kv_heads),
      step_count_(implementation.steps),
      merging_(rules_of(implementation.policy.merge)),
      known_(nullptr),
      heads_(kept.size()),
      steps_(kept.size(), std::vector<ReplayedStep>(step_count_)) {
  part_.first_rows = first_rows(kept, claims);
  part_.exact_prompt = ExactRows(prompt_claims(claims), implementation.merged_storage);
  part_.exact_rebuilds = ExactRows(rebuilt_claims(claims), implementation.merged_storage);
  part_.exact_steps = ExactRows(step_claims(claims), implementation.merged_storage);
  RebuildJudgement rebuilds = judge_rebuilds(layer, implementation, claims.rebuilt_target_of);
  part_.rebuilt = std::move(rebuilds.rebuilt);
  rebuilt_ = std::move(rebuilds.agreement);
  // With budgets that are wrong in sum it is not known which rows are of which head.
  if (claimed_rows(rebuilt_claims(claims)) != rows_in(part_.rebuilt)) part_.exact_rebuilds = {};
  if (claims.target_of) part_.target_of = *claims.target_of;
  if (merging_.averages()) {
    part_.averages = &known_.predicted(part_.prompt, *merging_.prediction);
    part_.log_sum_exp_errors = reference::window_log_sum_exp_errors(
        part_.prompt, part_.prompt.window_queries(), implementation.arithmetic.attention);
  }
  reference::parallel_for(kv_heads_, [&](int64_t g) {
    const int64_t index = g;
    heads_[index].emplace(part_, g, kept[index], kept[index] == reference.kept[index]);
  });
  for (const auto& head : heads_) target_of_.push_back(head->merged().target_of);
}

void LayerReplay::run(const Attended& attended) {
  const auto at = [&](const std::optional<Positions>& claims, int64_t t, int64_t g) {
    return claims ? std::optional((*claims)[t * kv_heads_ + g]) : std::nullopt;
  };
  // Consecutive steps per work item. Where the cache depends on no earlier step, a further item
  // has a replay of its own.
  constexpr int64_t kBlock = 32;
  const bool are_apart = heads_.front()->is_static() && !merging_.merges;
  const int64_t blocks = are_apart ? (step_count_ + kBlock - 1) / kBlock : 1;
  reference::parallel_for(blocks * kv_heads_, [&](int64_t i) {
    const int64_t g = i % kv_heads_, first = i / kv_heads_ * kBlock,
                  last = are_apart ? std::min(first + kBlock, step_count_) : step_count_;
    std::optional<HeadReplay> own;
    HeadReplay& head = first == 0 ? *heads_[g] : own.emplace(part_, g, kept_[g], true);
    for (int64_t t = 0; t < first; ++t) head.skip(t);
    for (int64_t t = first; t < last; ++t) {
      steps_[g][t] = head.step(t, {at(claims_.evicted, t, g), at(claims_.merged_into, t, g)}, attended);
    }
  });
}

std::vector<TensorAgreement> LayerReplay::agreements() const {
  std::vector<TensorAgreement> all;
  const int64_t prompt_tokens = part_.prompt.prompt_tokens();
  if (claims_.target_of) add_choices("target_of", &HeadReplay::targets, prompt_tokens, {}, all);
  judge_prompt_entries(all);
  // Rebuilds depend on no earlier choice, but later choices and outputs depend on them.
  if (claims_.rebuilt_target_of) {
    add_choices("rebuilt_target_of", &HeadReplay::rebuilt_targets, prompt_tokens + step_count_, rebuilt_,
                all);
  }
  judge_rebuilt_entries(all);
  if (claims_.evicted) add_steps("evicted", &ReplayedStep::evicted, all);
  if (claims_.merged_into) add_steps("merged_into", &ReplayedStep::into, all);
  judge_step_entries(all);
  return all;
}

LayerRecord LayerReplay::record(const ReplayedOutputs* outputs) const {
  LayerRecord record;
  record.prompt.kept = kept_;
  for (const auto& head : heads_) {
    if (merging_.merges) record.prompt.merges.push_back(head->merged());
  }
  for (int64_t t = 0; t < step_count_; ++t) {
    StepRecord& all = record.steps.emplace_back();
    if (outputs) all.output = outputs->output[t];
    for (int64_t g = 0; g < kv_heads_; ++g) {
      all.rebuilt = step(t, g).rebuilt;
      if (all.rebuilt) all.merges.emplace_back().positions = step(t, g).positions;
      if (evicts(part_.implementation.policy.host)) all.evicted.push_back(step(t, g).evicted.teacher_forced);
    }
  }
  return record;
}

FollowedChoices LayerReplay::followed() const {
  FollowedChoices choices{kept_, target_of_, std::vector<FollowedStep>(step_count_)};
  const bool evicts = kvbound::evicts(part_.implementation.policy.host);
  auto rebuilt = part_.rebuilt.begin();
  for (int64_t t = 0; t < step_count_; ++t) {
    FollowedStep& all = choices.steps[t];
    for (int64_t g = 0; g < kv_heads_; ++g) {
      const ReplayedStep& own = step(t, g);
      if (own.rebuilt) {
        all.kept.push_back(own.positions);
        all.target_of.push_back(own.target_of);
      }
      if (evicts) all.evicted.push_back(own.evicted.teacher_forced);
      if (evicts && merging_.merges) all.merged_into.push_back(own.into.teacher_forced);
    }
    if (all.rebuilt()) all.rebuilt_rows = (rebuilt++)->rows;
  }
  return choices;
}

// Judgements of the entries' clusters, of all KV heads together, beside that of which entries were kept.
//
// tokens  elements of a KV head, the tensor's last dimension
void LayerReplay::add_choices(const char* tensor, const std::vector<Choice>& (HeadReplay::*choices)() const,
                              int64_t tokens, const TensorAgreement& kept,
                              std::vector<TensorAgreement>& all) const {
  // The element of a choice's offence; of a choice without one the element is not used.
  const auto element_of = [&](const Choice& choice) {
    const Positions index = choice.offence ? choice.offence->index : Positions{0, 0};
    const int64_t rebuild = index.size() > 2 ? index.front() : 0;
    return (rebuild * kv_heads_ + index.end()[-2]) * tokens + index.back();
  };
  ChoiceTally tally(tensor, kept);
  for (const auto& head : heads_) {
    for (const Choice& choice : ((*head).*choices)()) tally.add(choice, element_of(choice));
  }
  all.push_back(tally.result());
}

void LayerReplay::add_steps(const char* tensor, Choice ReplayedStep::*choice,
                            std::vector<TensorAgreement>& all) const {
  ChoiceTally tally(tensor);
  for (int64_t t = 0; t < step_count_; ++t) {
    for (int64_t g = 0; g < kv_heads_; ++g) tally.add(step(t, g).*choice);
  }
  all.push_back(tally.result());
}

void LayerReplay::judge_prompt_entries(std::vector<TensorAgreement>& all) const {
  MergedAgreement merged(prompt_claims(claims_), shape_.head_dim, merging_.votes);
  for (size_t g = 0; g < heads_.size(); ++g) {
    if (part_.first_rows[g]) {
      merged.add(heads_[g]->prompt_entries());
    } else {
      merged.skip(std::ssize(claims_.kept ? (*claims_.kept)[g] : kept_[g]));
    }
  }
  merged.append("", all);
}

void LayerReplay::judge_rebuilt_entries(std::vector<TensorAgreement>& all) const {
  const MergedClaims claims = rebuilt_claims(claims_);
  MergedAgreement merged(claims, shape_.head_dim, merging_.votes);
  const int64_t claimed = claimed_rows(claims).value_or(0);
  if (claimed != rows_in(part_.rebuilt)) {
    merged.skip(claimed);
    merged.append("rebuilt_", all);
    return;
  }
  for (size_t r = 0; r < part_.rebuilt.size(); ++r) {
    for (size_t g = 0; g < heads_.size(); ++g) {
      if (part_.rebuilt[r].first_rows[g]) {
        merged.add(heads_[g]->rebuilt_entries()[r]);
      } else {
        merged.skip(part_.rebuilt[r].rows[g]);
      }
    }
  }
  merged.append("rebuilt_", all);
}

void LayerReplay::judge_step_entries(std::vector<TensorAgreement>& all) const {
  MergedAgreement merged(step_claims(claims_), shape_.head_dim, merging_.votes);
  for (int64_t t = 0; t < step_count_; ++t) {
    for (int64_t g = 0; g < kv_heads_; ++g) {
      const ReplayedStep& step = this->step(t, g);
      if (!step.followed) {
        merged.skip(1);
      } else if (step.merged.members.empty()) {
        merged.add_nothing();
      } else {
        merged.add(step.merged);
      }
    }
  }
  merged.append("step_", all);
}

}  // namespace kvbound::sim
