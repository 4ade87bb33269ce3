#include "gather_files.hpp"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/messages.hpp>

#include "progress.hpp"
#include "replay_verdict.hpp"

namespace kvbound::sim {
namespace {

constexpr size_t kMostNamed = 20;

std::string text_of(const MissingItem& missing, const Sweep& sweep) {
  std::string text = text_of(missing.item, sweep);
  if (!missing.attempts.empty()) {
    text += fmt::format(
        ": failed {} times, the last: {}", missing.attempts.size(),
        one_line(without_middle(missing.attempts.back().problem.value_or("its process was killed"))));
  }
  if (missing.other_computation)
    text += "; another build, compiler, BLAS or GPU has results of it (--mixed takes them)";
  return text;
}

}  // namespace

std::optional<std::string> sweep_hash(const CommandLine& line) {
  const auto hash = line.text("sweep");
  if (hash && !SweepFolder::is_hash(*hash)) {
    throw UsageError(
        fmt::format("--sweep {}: expected a hash, 64 hexadecimal digits", traces::in_quotes(*hash)));
  }
  return hash;
}

void tell_damaged(SweepFolder& folder, const Sweep& sweep, const DamageOptions& options) {
  const std::vector<std::string> problems = find_damaged(folder, sweep, options);
  for (size_t i = 0; i < std::min(problems.size(), kMostNamed); ++i)
    std::cerr << fmt::format("kvbound: {}; it counts as missing\n", one_line(problems[i]));
  if (problems.size() > kMostNamed)
    std::cerr << fmt::format("kvbound: and {} more damaged results\n", problems.size() - kMostNamed);
}

int tell_missing(const SweepFolder& folder, const Sweep& sweep, const std::vector<MissingItem>& missing) {
  if (missing.empty()) return kPass;
  std::cerr << fmt::format("kvbound: {}: no results of {} item{}:\n", one_line(without_middle(folder.path())),
                           missing.size(), missing.size() == 1 ? "" : "s");
  for (size_t i = 0; i < std::min(missing.size(), kMostNamed); ++i)
    std::cerr << "  " << text_of(missing[i], sweep) << "\n";
  if (missing.size() > kMostNamed) std::cerr << fmt::format("  and {} more\n", missing.size() - kMostNamed);
  return kInconclusive;
}

int gather_files(const SweepFolder& folder, const Sweep& sweep, Outputs& outputs,
                 const GatherRequest& request) {
  Gathering gathering(folder, sweep, request.mixed);
  int code = tell_missing(folder, sweep, gathering.missing());
  if (code != kPass && !request.partial) return code;
  outputs.open();
  const ReplayDetail detail = replay_detail(outputs, request.style);
  outputs.add_headings(replay_part({}, {}, ReplayDetail::rows));  // also where no trace is whole
  {
    Progress progress("gathering", !request.quiet);
    bool first = true;
    for (size_t t = 0; t < sweep.traces.size(); ++t) {
      progress.update(static_cast<int64_t>(t), std::ssize(sweep.traces));
      if (!gathering.is_whole(t)) continue;
      const ReplayReport report = gathering.trace(t);
      const Part part = replay_part(report, sweep.base, detail);
      if (!request.quiet)
        std::cout << (first ? "" : "\n") << text_report(report, part, request.style, request.columns)
                  << std::flush;
      outputs.add(part);
      code = worse(code, replay_verdict(report, request.quiet));
      first = false;
    }
  }
  outputs.prepare(provenance(gathering.environment()));
  outputs.commit();
  return code;
}

}  // namespace kvbound::sim
