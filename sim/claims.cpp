#include "claims.hpp"

namespace kvbound::sim {
namespace {

RealClaim claim(const Matrix& matrix, Dtype storage) {
  return {{matrix.rows(), matrix.cols()}, {matrix.numbers().begin(), matrix.numbers().end()}, storage};
}

RealClaim outputs(const std::vector<StepRecord>& steps, Dtype storage) {
  const Matrix& first = steps.front().output;
  RealClaim claim{{static_cast<int64_t>(steps.size()), first.rows(), first.cols()}, {}, storage};
  for (const StepRecord& step : steps) {
    claim.numbers.insert(claim.numbers.end(), step.output.numbers().begin(), step.output.numbers().end());
  }
  return claim;
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
  if (record.steps.empty()) return claims;
  claims.output = outputs(record.steps, storage);
  if (record.steps.front().left.empty()) return claims;
  claims.left.emplace();
  for (const StepRecord& step : record.steps) {
    claims.left->insert(claims.left->end(), step.left.begin(), step.left.end());
  }
  return claims;
}

}  // namespace kvbound::sim
