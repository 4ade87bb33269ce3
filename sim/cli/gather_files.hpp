// What gathering a sweep prints and writes; shared by the commands sweep and gather.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/sweep/gather.hpp>

namespace kvbound::sim {

struct GatherRequest {
  std::optional<std::string> json, csv;
  bool mixed = false;    ///< Gathering
  bool partial = false;  ///< leave traces out of which results are missing, instead of refusing
  bool quiet = false;    ///< no tables
  std::vector<std::string> columns = column_names();  ///< of the tables
};

/// Puts a sweep's results together, trace by trace. Returns the exit code: replay_verdict's, or kInconclusive if results are
/// missing, which are named on standard error.
int gather_files(const SweepFolder& folder, const Sweep& sweep, const GatherRequest& request);

/// Names items without results on standard error, the first ones; kInconclusive if there are any, else kPass.
int tell_missing(const SweepFolder& folder, const Sweep& sweep, const std::vector<MissingItem>& missing);

}  // namespace kvbound::sim
