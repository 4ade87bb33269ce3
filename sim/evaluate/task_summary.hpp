// What all tasks of a kind say about a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "evaluate.hpp"
#include "statistics.hpp"

namespace kvbound::sim {

/// Means over tasks, each of which counts alike, of figures that are means over a task's tokens.
struct KindSummary {
  std::string kind;
  bool answers = false;  ///< of answers; else of continuations
  int64_t tasks = 0;
  double full_nll = 0;  ///< of the full cache
  double full_hits =
      0;  ///< of answers: share of the tokens that the full cache decodes greedily, given those before
  int64_t full_exact = 0;  ///< of answers: tasks all of whose tokens it does
};

/// A run on the tasks of a kind.
struct RunSummary {
  std::string kind;
  bool answers = false;  ///< as of the KindSummary: a kind may have both
  size_t run = 0;
  Estimate kl, delta_nll,
      agreement;  ///< agreement: share of tokens whose most likely token is the full cache's
  double nll = 0;
  std::optional<Estimate> hits;  ///< of answers: as KindSummary::full_hits
  int64_t exact = 0;             ///< likewise
  /// Less the base policy's at the same budget, paired by task.
  std::optional<Estimate> kl_less_base, nll_less_base, hits_less_base, exact_less_base;
  std::vector<double> hidden_error;  ///< [layers]
  double entries = 0;  ///< per KV head, that a step attends to: mean over steps, layers and heads
  double bytes = 0;    ///< of all keys and values that are stored: mean over steps
  OpenLoop open_loop;  ///< means over the tasks that have the figure
  int64_t violations = 0;
};

/// A run's, or the full cache's, answers to needles at a depth.
struct DepthSummary {
  std::string kind;
  std::optional<size_t> run;  ///< none: the full cache
  double depth = 0;
  int64_t tasks = 0, exact = 0;
  double hits = 0;  ///< share of tokens, mean over tasks
};

struct EvaluateSummary {
  std::vector<KindSummary> kinds;    ///< in the order of their first tasks
  std::vector<RunSummary> runs;      ///< kind by kind
  std::vector<DepthSummary> depths;  ///< kind by kind, the full cache first, by depth
};

/// base  the policy that others are compared with at each budget; a run of it need not be there
EvaluateSummary summarise(const EvaluateResult& result, const std::optional<Policy>& base,
                          const Bootstrap& bootstrap);

}  // namespace kvbound::sim
