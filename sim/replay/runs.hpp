// The runs of a study: every policy at every budget on every backend.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "replay.hpp"

namespace kvbound::sim {

/// Reads policies' texts. A base that is not among them comes first.
///
/// throws  InvalidPolicy for texts that are no policies, and for a policy given twice
std::vector<NamedPolicy> named_policies(const std::vector<std::string>& texts,
                                        const std::optional<std::string>& base);

/// Budget by budget, then policy by policy, then backend by backend.
std::vector<Run> every_run(const std::vector<NamedPolicy>& policies, const std::vector<Budget>& budgets,
                           const std::vector<std::string>& backends);

}  // namespace kvbound::sim
