// What gathering a sweep prints and writes; shared by the commands sweep and gather.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/replay_report.hpp>
#include <kvbound/sim/sweep/damage.hpp>
#include <kvbound/sim/sweep/gather.hpp>

namespace kvbound::sim {

struct GatherRequest {
  bool mixed = false;    ///< Gathering
  bool partial = false;  ///< leave traces out of which results are missing, instead of refusing
  bool quiet = false;    ///< no tables
  TextStyle style = terminal_style();
  std::vector<std::string> columns = {};  ///< of the tables; empty: those shown by default
};

/// Puts a sweep's results together, trace by trace. Returns the exit code: replay_verdict's, or kInconclusive
/// if results are missing, which are named on standard error.
///
/// outputs  not yet open; get all of the results, or nothing
int gather_files(const SweepFolder& folder, const Sweep& sweep, Outputs& outputs,
                 const GatherRequest& request);

/// The sweep that --sweep names by its hash; none without it. Throws UsageError for what is no hash.
std::optional<std::string> sweep_hash(const CommandLine& line);

/// Makes damaged results missing, and names them on standard error, the first ones. Throws as find_damaged.
void tell_damaged(SweepFolder& folder, const Sweep& sweep, const DamageOptions& options);

/// Names items without results on standard error, the first ones; kInconclusive if there are any, else kPass.
int tell_missing(const SweepFolder& folder, const Sweep& sweep, const std::vector<MissingItem>& missing);

}  // namespace kvbound::sim
