// Runs as Python asks for them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/options/runs.hpp>

namespace kvbound::python {

/// What is run, as kvbound's options say it.
struct WantedRuns {
  std::vector<std::string> policies, budgets, backends;
  std::optional<std::string> base;

  /// Throws InvalidPolicy for texts that are none, and what is given twice.
  std::vector<sim::Run> runs() const;
  std::optional<Policy> base_policy() const;
};

}  // namespace kvbound::python
