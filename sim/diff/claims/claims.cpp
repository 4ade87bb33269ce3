#include "claims.hpp"

#include <array>

namespace kvbound::sim {
namespace {

RealClaim claim(const Matrix& matrix, Dtype storage) {
  return {{matrix.rows(), matrix.cols()}, {matrix.numbers().begin(), matrix.numbers().end()}, storage};
}

RealClaim outputs(const std::vector<StepRecord>& steps, Dtype storage) {
  const Matrix& first = steps.front().output;
  RealClaim claim{{std::ssize(steps), first.rows(), first.cols()}, {}, storage};
  for (const StepRecord& step : steps) {
    claim.numbers.insert(claim.numbers.end(), step.output.numbers().begin(), step.output.numbers().end());
  }
  return claim;
}

// The choices of all steps; nullopt if the policy makes none of this kind.
std::optional<std::vector<int64_t>> choices(const std::vector<StepRecord>& steps,
                                            std::vector<int64_t> StepRecord::*chosen) {
  if ((steps.front().*chosen).empty()) return std::nullopt;
  std::vector<int64_t> all;
  for (const StepRecord& step : steps) all.insert(all.end(), (step.*chosen).begin(), (step.*chosen).end());
  return all;
}

// target_of of all KV heads, each padded to `tokens` with kNothingEvicted.
std::vector<int64_t> targets_of(const std::vector<HeadMerge>& merges, int64_t tokens) {
  std::vector<int64_t> all;
  for (const HeadMerge& merge : merges) {
    all.insert(all.end(), merge.target_of.begin(), merge.target_of.end());
    all.resize(all.size() + static_cast<size_t>(tokens - std::ssize(merge.target_of)), kNothingEvicted);
  }
  return all;
}

}  // namespace

std::span<const RealTensor> real_tensors() {
  static constexpr std::array kTensors{
      RealTensor{"votes", &LayerClaims::votes},
      RealTensor{"merged_key", &LayerClaims::merged_key},
      RealTensor{"merged_value", &LayerClaims::merged_value},
      RealTensor{"rebuilt_votes", &LayerClaims::rebuilt_votes},
      RealTensor{"rebuilt_merged_key", &LayerClaims::rebuilt_merged_key},
      RealTensor{"rebuilt_merged_value", &LayerClaims::rebuilt_merged_value},
      RealTensor{"step_votes", &LayerClaims::step_votes},
      RealTensor{"step_merged_key", &LayerClaims::step_merged_key},
      RealTensor{"step_merged_value", &LayerClaims::step_merged_value},
      RealTensor{"prompt_output", &LayerClaims::prompt_output},
      RealTensor{"score", &LayerClaims::score},
      RealTensor{"projected_value_norms", &LayerClaims::projected_value_norms},
      RealTensor{"stage_two_score", &LayerClaims::stage_two_score},
      RealTensor{"output", &LayerClaims::output},
      RealTensor{"kept_mass", &LayerClaims::kept_mass},
      RealTensor{"bound", &LayerClaims::bound},
      RealTensor{"perturbation", &LayerClaims::perturbation},
      RealTensor{"layer_perturbation", &LayerClaims::layer_perturbation}};
  return kTensors;
}

std::span<const IntegerTensor> integer_tensors() {
  static constexpr std::array kTensors{IntegerTensor{"score_positions", &LayerClaims::score_positions},
                                       IntegerTensor{"kept_offsets", &LayerClaims::kept_offsets},
                                       IntegerTensor{"evicted", &LayerClaims::evicted},
                                       IntegerTensor{"merged_into", &LayerClaims::merged_into},
                                       IntegerTensor{"target_of", &LayerClaims::target_of},
                                       IntegerTensor{"rebuilt_target_of", &LayerClaims::rebuilt_target_of}};
  return kTensors;
}

std::optional<std::vector<int64_t>> prompt_targets(const PromptRecord& prompt) {
  if (prompt.merges.empty() || prompt.merges.front().target_of.empty()) return std::nullopt;
  return targets_of(prompt.merges, std::ssize(prompt.merges.front().target_of));
}

std::optional<std::vector<int64_t>> rebuilt_targets(const std::vector<StepRecord>& steps, int64_t tokens) {
  std::optional<std::vector<int64_t>> all;
  for (const StepRecord& step : steps) {
    if (!step.rebuilt) continue;
    if (!all) all.emplace();
    const std::vector<int64_t> own = targets_of(step.merges, tokens);
    all->insert(all->end(), own.begin(), own.end());
  }
  return all;
}

void MergedRows::append(const HeadMerge& merge) {
  votes.insert(votes.end(), merge.votes.begin(), merge.votes.end());
  for (int64_t i = 0; i < merge.keys.rows(); ++i) {
    keys.append_row(merge.keys.row(i));
    values.append_row(merge.values.row(i));
  }
}

std::optional<MergedRows> prompt_rows(const PromptRecord& prompt) {
  if (prompt.merges.empty()) return std::nullopt;
  MergedRows rows;
  for (const HeadMerge& merge : prompt.merges) rows.append(merge);
  return rows;
}

std::optional<MergedRows> rebuilt_rows(const std::vector<StepRecord>& steps) {
  std::optional<MergedRows> rows;
  for (const StepRecord& step : steps) {
    if (!step.rebuilt) continue;
    if (!rows) rows.emplace();
    for (const HeadMerge& merge : step.merges) rows->append(merge);
  }
  return rows;
}

std::optional<MergedRows> step_rows(const LayerRecord& record) {
  const bool clusters = !record.prompt.merges.empty() && !record.prompt.merges.front().target_of.empty();
  if (!clusters || record.steps.empty() || record.steps.front().merged_into.empty()) return std::nullopt;
  const std::vector<double> nothing(record.steps.front().output.cols());
  MergedRows rows;
  for (const StepRecord& step : record.steps) {
    for (size_t g = 0; g < step.merged_into.size(); ++g) {
      // A step that begins with a rebuild records the whole cache, and evicts nothing.
      if (step.merged_into[g] >= 0 && !step.rebuilt) {
        rows.append(step.merges[g]);
        continue;
      }
      rows.votes.push_back(0);
      rows.keys.append_row(nothing);
      rows.values.append_row(nothing);
    }
  }
  return rows;
}

namespace {

// rows, whose number is the product of `extents`, as claims of this shape
void claim_rows(const std::optional<MergedRows>& rows, const std::vector<int64_t>& extents, Dtype storage,
                std::optional<RealClaim>& votes, std::optional<RealClaim>& keys,
                std::optional<RealClaim>& values) {
  if (!rows) return;
  votes = RealClaim{extents, rows->votes, storage};
  keys = claim(rows->keys, storage);
  values = claim(rows->values, storage);
  keys->shape = extents;
  keys->shape.push_back(rows->keys.cols());
  values->shape = keys->shape;
}

void claim_merges(const LayerRecord& record, Dtype storage, LayerClaims& claims) {
  const auto count = [](const std::optional<MergedRows>& rows) { return rows ? std::ssize(rows->votes) : 0; };
  const std::optional<MergedRows> prompt = prompt_rows(record.prompt), rebuilt = rebuilt_rows(record.steps),
                                  steps = step_rows(record);
  claim_rows(prompt, {count(prompt)}, storage, claims.votes, claims.merged_key, claims.merged_value);
  claim_rows(rebuilt, {count(rebuilt)}, storage, claims.rebuilt_votes, claims.rebuilt_merged_key,
             claims.rebuilt_merged_value);
  claim_rows(steps, {std::ssize(record.steps), std::ssize(record.prompt.kept)}, storage, claims.step_votes,
             claims.step_merged_key, claims.step_merged_value);
}

}  // namespace

LayerClaims claims_of(const LayerRecord& record, Dtype storage) {
  LayerClaims claims;
  claims.kept = record.prompt.kept;
  if (record.prompt.score.rows() > 0) {
    claims.score_positions = record.prompt.score_positions;
    claims.score = claim(record.prompt.score, storage);
  }
  if (record.prompt.projected_value_norms) {
    claims.projected_value_norms = claim(*record.prompt.projected_value_norms, storage);
  }
  if (record.prompt.stage_two_score) claims.stage_two_score = claim(*record.prompt.stage_two_score, storage);
  claim_merges(record, storage, claims);
  claims.target_of = prompt_targets(record.prompt);
  if (record.steps.empty()) return claims;
  claims.output = outputs(record.steps, storage);
  claims.evicted = choices(record.steps, &StepRecord::evicted);
  claims.merged_into = choices(record.steps, &StepRecord::merged_into);
  if (claims.target_of) {
    const int64_t prompt_tokens = std::ssize(record.prompt.merges.front().target_of);
    claims.rebuilt_target_of = rebuilt_targets(record.steps, prompt_tokens + std::ssize(record.steps));
  }
  return claims;
}

}  // namespace kvbound::sim
