// How commands that judge results end.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/report/agreement_report.hpp>

namespace kvbound::sim {

/// The exit code for these tensors of a file; what differs, or is inconclusive, is said on standard error.
int exit_code(const std::vector<TensorSummary>& tensors, const std::string& path, bool quiet);

}  // namespace kvbound::sim
