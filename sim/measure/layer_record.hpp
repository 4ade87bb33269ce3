// One run's records of one layer.
#pragma once

#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::sim {

/// Everything that one run (a policy, a budget, a backend) recorded of one layer.
struct LayerRecord {
  PromptRecord prompt;
  std::vector<StepRecord> steps;
};

}  // namespace kvbound::sim
