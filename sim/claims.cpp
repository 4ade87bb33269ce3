#include "claims.hpp"

namespace kvbound::sim {
namespace {

RealClaim claim(const Matrix& matrix) {
  return {{matrix.rows(), matrix.cols()}, {matrix.numbers().begin(), matrix.numbers().end()}, Dtype::f64};
}

RealClaim outputs(const std::vector<StepRecord>& steps) {
  const Matrix& first = steps.front().output;
  RealClaim claim{{static_cast<int64_t>(steps.size()), first.rows(), first.cols()}, {}, Dtype::f64};
  for (const StepRecord& step : steps) {
    claim.numbers.insert(claim.numbers.end(), step.output.numbers().begin(), step.output.numbers().end());
  }
  return claim;
}

}  // namespace

LayerClaims claims_of(const LayerRecord& record) {
  LayerClaims claims;
  claims.kept = record.prompt.kept;
  claims.score_positions = record.prompt.score_positions;
  claims.score = claim(record.prompt.score);
  if (record.prompt.projected_value_norms) {
    claims.projected_value_norms = claim(*record.prompt.projected_value_norms);
  }
  if (record.prompt.stage_two_score) claims.stage_two_score = claim(*record.prompt.stage_two_score);
  if (!record.steps.empty()) claims.output = outputs(record.steps);
  return claims;
}

}  // namespace kvbound::sim
