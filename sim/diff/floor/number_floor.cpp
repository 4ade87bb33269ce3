#include "number_floor.hpp"

#include <utility>

#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/judge/prompt_errors.hpp>

#include "certain_findings.hpp"

namespace kvbound::sim {
std::vector<DetectionFloor> number_floors(const traces::Layer& layer,
                                          const TestedImplementation& implementation,
                                          const std::string& score, Dtype storage) {
  const LayerView prompt = layer.prompt();
  const std::vector<int64_t> budgets(layer.shape.kv_heads, implementation.entries);
  const PromptRecord record = reference::make_session()->compress(prompt, implementation.policy, budgets);
  const PromptErrors errors(prompt, implementation, record);
  std::vector<DetectionFloor> floors;
  const auto add = [&](std::string operation, const Matrix& expected, const Matrix& bounds) {
    const VectorView numbers = expected.numbers(), off = bounds.numbers();
    DetectionFloor floor{std::move(operation), layer.index, layer.prompt_tokens, std::ssize(numbers)};
    floor.factor = factor_floor(numbers, off, storage);
    floor.halved = always_find_factor(numbers, off, 0.5, storage);
    floor.zeros = always_find_factor(numbers, off, 0, storage);
    floors.push_back(std::move(floor));
  };
  add(score, record.score, errors.score);
  if (record.projected_value_norms) add("projected_value_norms", *record.projected_value_norms, errors.norms);
  if (record.stage_two_score) add("stage_two_score", *record.stage_two_score, errors.stage_two_score);
  return floors;
}

}  // namespace kvbound::sim
