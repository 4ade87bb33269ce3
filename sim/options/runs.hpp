// Runs: policies at budgets on backends.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/policy.hpp>

#include "budget.hpp"

namespace kvbound::sim {

/// The name of the backend that computes in double precision.
inline constexpr std::string_view kReference = "reference";

/// A policy with the text by which the user named it.
struct NamedPolicy {
  std::string label;  ///< as typed
  Policy policy;
};

/// One policy at one budget on one backend.
struct Run {
  NamedPolicy policy;
  Budget budget;
  std::string backend;
};

/// Reads policies' texts, and the importances of heads that they name. A base that is not among them comes
/// first.
///
/// throws  InvalidPolicy for texts that are no policies, and for a policy given twice; as with_head_scores
std::vector<NamedPolicy> named_policies(const std::vector<std::string>& texts,
                                        const std::optional<std::string>& base);

/// Budget by budget, then policy by policy, then backend by backend.
std::vector<Run> every_run(const std::vector<NamedPolicy>& policies, const std::vector<Budget>& budgets,
                           const std::vector<std::string>& backends);

/// The paths of all files that policies name: of kept sets and scores, and of heads' importances.
std::vector<std::string> named_files(const std::vector<Run>& runs);

}  // namespace kvbound::sim
