// What sets one host apart from the others, as plain data: backends and judges read it, and none asks which host it is.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "policy.hpp"

namespace kvbound {

/// How attention weights reduce over the queries of a host's observation window; all other scores are summed.
enum class WindowReduction { mean, sum };

/// What a decode step's scores do to the running scores of the cache's entries.
enum class StepUpdate {
  none,        ///< entries have no running scores
  accumulate,  ///< added to them
  replace,     ///< the last step's alone count
};

/// What a host always keeps, which queries it scores by, and how it goes on in decoding.
///
///     always kept  <=>  position < sinks  or  position > newest - recent
struct HostRules {
  int64_t window =
      0;  ///< observation window: the last prompt queries, whose scores rank the entries; 0: none are ranked
  int64_t sinks = 0;   ///< first positions, always kept
  int64_t recent = 0;  ///< newest positions, always kept
  int64_t scored = 0;  ///< positions 0..scored - 1 are scored at the prompt's end
  int64_t pool = 1;    ///< width of the max-pool over the prompt's scores, odd; 1 is none
  WindowReduction window_reduction = WindowReduction::mean;
  StepUpdate step_update = StepUpdate::none;
  bool evicts =
      false;  ///< brings the cache back to its budget after each decode step; else every new entry is kept
  bool fills_recent = false;  ///< `recent` is whatever the sinks leave of the budget

  /// Whether entries are ranked by scores; else the sinks and the newest are kept.
  bool ranks() const { return window > 0; }
  /// `newest` is the last position so far: n - 1 at the prompt's end.
  bool always_keeps(int64_t position, int64_t newest) const {
    return position < sinks || position > newest - recent;
  }
  /// Those of a prompt, ascending.
  std::vector<int64_t> always_kept(int64_t prompt_tokens) const {
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      if (always_keeps(i, prompt_tokens - 1)) positions.push_back(i);
    }
    return positions;
  }
};

namespace detail {

inline HostRules host_rules(const SnapKv& host, int64_t prompt_tokens, int64_t) {
  return {.window = host.window,
          .recent = host.window,
          .scored = prompt_tokens - host.window,
          .pool = host.pool,
          .window_reduction = WindowReduction::mean};
}
inline HostRules host_rules(const H2o& host, int64_t prompt_tokens, int64_t) {
  return {.window = host.window,
          .sinks = host.sinks,
          .recent = host.recent_entries(),
          .scored = prompt_tokens,
          .window_reduction = WindowReduction::sum,
          .step_update = StepUpdate::accumulate,
          .evicts = true};
}
inline HostRules host_rules(const Tova& host, int64_t prompt_tokens, int64_t) {
  return {.window = 1,
          .sinks = host.sinks,
          .scored = prompt_tokens,
          .step_update = StepUpdate::replace,
          .evicts = true};
}
inline HostRules host_rules(const StreamingLlm& host, int64_t, int64_t budget) {
  return {.sinks = host.sinks, .recent = budget - host.sinks, .evicts = true, .fills_recent = true};
}

}  // namespace detail

/// prompt_tokens  n
/// budget         entries kept per KV head; hosts that rank entries do not depend on it
inline HostRules rules_of(const Host& host, int64_t prompt_tokens, int64_t budget) {
  return std::visit([&](const auto& one) { return detail::host_rules(one, prompt_tokens, budget); }, host);
}

/// The facts that depend on neither prompt nor budget.
inline bool evicts(const Host& host) { return rules_of(host, 0, 0).evicts; }
inline bool ranks(const Host& host) { return rules_of(host, 0, 0).ranks(); }

}  // namespace kvbound
