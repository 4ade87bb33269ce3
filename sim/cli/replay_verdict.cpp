#include "replay_verdict.hpp"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/diff/agreement_summary.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/replay/summary.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

// Explains on standard error where a run differs from the reference, or that its agreement is inconclusive.
ExitCode agreement_code(const std::string& trace, const RunResult& run) {
  if (!run.agreement) return kPass;
  const auto tell = [&](const std::string& what) {
    std::cerr << fmt::format("kvbound: {}: {} at {} on {}: {}\n", one_line(without_middle(trace)),
                             traces::printable(run.run.policy.label, traces::kMostQuoted),
                             to_string(run.run.budget), run.run.backend, what);
  };
  const std::vector<TensorSummary> all = summaries(*run.agreement);
  switch (verdict(all)) {
    case Verdict::agrees:
      return kPass;
    case Verdict::differs: {
      const auto first =
          std::ranges::find_if(all, [](const TensorSummary& summary) { return !summary.total.agrees(); });
      tell(text_of(*first->worst));
      return kMismatch;
    }
    case Verdict::no_evidence:
      tell("inconclusive: no bound is small enough to show that it agrees with the reference" +
           (text_of_unjudged(all).empty() ? "" : ": " + text_of_unjudged(all)));
      return kInconclusive;
  }
  return kInternal;  // not reached
}

// Whether a bound was violated; where, is explained on standard error.
bool violates(const ReplayReport& report, const RunResult& run) {
  const Summary summary = summarise(run, report.result.scope);
  bool violated = false;
  const auto tell = [&](const char* what, int64_t violations, const std::optional<Place>& place) {
    if (violations == 0) return;
    const std::string step = place->step < 0 ? "the prompt's end" : fmt::format("step {}", place->step);
    std::cerr << fmt::format("kvbound: {}: {} at {}: {} {} times, first at layer {}, {}, query head {}\n",
                             one_line(without_middle(report.result.trace.path)),
                             traces::printable(run.run.policy.label, traces::kMostQuoted),
                             to_string(run.run.budget), what, violations,
                             report.result.trace.layer_number(place->layer), step, place->query_head);
    violated = true;
  };
  tell("the perturbation exceeds its bound", summary.violations, summary.first_violation);
  if (summary.merges) {
    tell("a lossless merge changes the output by more than rounding can explain", summary.merges->violations,
         summary.merges->first_violation);
  }
  if (summary.later) {
    tell("what a merge did to later queries exceeds its bound", summary.later->violations,
         summary.later->first_violation);
  }
  return violated;
}

}  // namespace

int worse(int one, int other) {
  if (one == kMismatch || other == kMismatch) return kMismatch;
  return one == kPass ? other : one;
}

int replay_verdict(const ReplayReport& report, bool quiet) {
  int code = kPass;
  if (report.result.scope.steps == 0) {
    if (!quiet) {
      std::cerr << "kvbound: " << one_line(without_middle(report.result.trace.path))
                << ": no decode step, so nothing was measured\n";
    }
    code = kInconclusive;
  }
  for (const RunResult& run : report.result.runs) {
    code = worse(code, agreement_code(report.result.trace.path, run));
    if (violates(report, run)) code = kMismatch;
  }
  return code;
}

}  // namespace kvbound::sim
