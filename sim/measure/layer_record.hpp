// One run's records of one layer.
#pragma once

#include <optional>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::sim {

/// Everything that one run (a policy, a budget, a backend) recorded of one layer.
struct LayerRecord {
  PromptRecord prompt;
  std::vector<StepRecord> steps;
  /// The policy's; nullopt: of a run that merges no theta is measured.
  std::optional<Merge> merge = {};
  /// In which the decode steps' outputs were computed.
  reference::Arithmetic attention = reference::double_precision();
};

}  // namespace kvbound::sim
