// How commands that judge results end.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/diff/agreement_summary.hpp>
#include <kvbound/sim/diff/unlikely.hpp>
#include <kvbound/sim/report/rows_report.hpp>

namespace kvbound::sim {

struct Ending {
  bool strict = false;  ///< whether what is unlikely is a mismatch, too
  bool quiet = false;
};

/// The exit code for these tensors of a file; what differs, is unlikely, or is inconclusive,
/// is said on standard error.
int exit_code(const std::vector<TensorSummary>& tensors, const ChanceVerdict& chance, const std::string& path,
              const Ending& ending);

/// The exit code where `alone` is the worse of A's and B's own; whatever else keeps them from agreeing
/// is said on standard error.
int exit_code(const ComparedRows& compared, int alone, const Ending& ending);

}  // namespace kvbound::sim
