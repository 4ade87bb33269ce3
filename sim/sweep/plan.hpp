// Plans of sweeps: which traces go through which policies at which budgets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/cache_heads.hpp>

namespace kvbound::sim {

/// What a plan file says, checked as far as that goes without the traces.
struct SweepPlan {
  std::string path;  ///< of the plan, for messages
  std::vector<std::string> traces;
  std::vector<NamedPolicy> policies;
  std::vector<Budget> budgets;
  std::vector<std::string> backends;
  std::optional<Policy> base;
  traces::CacheHeads heads = traces::CacheHeads::kv;
  std::optional<std::string> layers;
  std::optional<int64_t> steps;
  int64_t recall_of = 40;
  bool merge_bounds = false, centred_bound = false;
  int64_t layers_per_item = 1;
  std::optional<int64_t> policies_per_item;
};

/// The most runs of a plan: policies with each of their seeds, at all budgets, on all backends.
inline constexpr int64_t kMostRuns = 100'000;

/// Reads a plan: a JSON object. Its members:
///
///     format             "kvbound-sweep-plan"
///     version            1
///     traces             patterns as of a shell (`*`, `?`, `[...]`, `{a,b}`, `~`), at least one, each
///                        of which some file matches
///     policies           texts, each another policy
///     budgets            texts such as "20%" or "256"
///     base               optional, a policy that others are compared with; it is added to the policies
///     backends           optional, of "reference" (default), "emulated", "cuda"
///     heads              optional, "kv" (default) or "query": which heads have a cache
///     layers             optional, such as "0,3-5" (default: all)
///     steps              optional, how many of the decode steps (default: all)
///     recall             optional, entries that recall is measured on (default: 40, at most the prompt's)
///     merge_bounds       optional, true: also measure merges' effect on later queries (default: false)
///     centred_bound      optional, true: also measure the centred bound (default: false)
///     seeds              optional, integers: a policy that draws random numbers is run with each of them
///     layers_per_item    optional (default: 1)
///     policies_per_item  optional (default: all; a layer is then read once for all policies and budgets)
///
/// throws  TraceError, naming file, byte and member, for anything else, unknown and repeated
///         members included; IoError
SweepPlan read_plan(const std::string& path);

}  // namespace kvbound::sim
