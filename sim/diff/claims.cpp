#include "claims.hpp"

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

void add_merges(const std::vector<HeadMerge>& merges, Dtype storage, LayerClaims& claims) {
  if (merges.empty()) return;
  RealClaim votes{{0}, {}, storage}, keys{{0, merges.front().keys.cols()}, {}, storage}, values = keys;
  for (const HeadMerge& merge : merges) {
    votes.numbers.insert(votes.numbers.end(), merge.votes.begin(), merge.votes.end());
    keys.numbers.insert(keys.numbers.end(), merge.keys.numbers().begin(), merge.keys.numbers().end());
    values.numbers.insert(values.numbers.end(), merge.values.numbers().begin(), merge.values.numbers().end());
  }
  votes.shape[0] = keys.shape[0] = values.shape[0] = std::ssize(votes.numbers);
  claims.votes = std::move(votes);
  claims.merged_key = std::move(keys);
  claims.merged_value = std::move(values);
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
  add_merges(record.prompt.merges, storage, claims);
  if (record.steps.empty()) return claims;
  claims.output = outputs(record.steps, storage);
  claims.evicted = choices(record.steps, &StepRecord::evicted);
  claims.merged_into = choices(record.steps, &StepRecord::merged_into);
  return claims;
}

}  // namespace kvbound::sim
