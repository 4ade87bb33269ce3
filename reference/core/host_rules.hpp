// The rules that distinguish the hosts, as plain data: backends and
// checks read these fields and never branch on the host's type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "alternatives.hpp"
#include "given_layer.hpp"
#include "policy.hpp"

namespace kvbound {

/// How attention weights are reduced over the queries of a host's observation window; all
/// other scores are summed.
enum class WindowReduction { mean, sum };

/// How a decode step's scores update the running scores of the cache's entries.
enum class StepUpdate {
  none,        ///< entries have no running scores
  accumulate,  ///< the step's scores are added to the running scores
  replace,     ///< the step's scores replace the running scores
};

/// Which entries a host always keeps, which queries score the others, and whether it evicts during decoding.
///
///     always kept  <=>  position < sinks  or  position > newest - recent  or  given->always_kept has it
struct HostRules {
  std::string_view name;  ///< as policies are written
  /// Observation window: the number of last prompt queries whose scores rank the entries;
  /// 0: entries are not ranked.
  int64_t window = 0;
  int64_t sinks = 0;   ///< first positions, always kept
  int64_t recent = 0;  ///< newest positions, always kept
  int64_t scored = 0;  ///< number of positions that are scored at the prompt's end: scored_positions
  int64_t pool = 1;    ///< width of the max-pool over the prompt's scores, odd; 1: no pooling
  WindowReduction window_reduction = WindowReduction::mean;
  StepUpdate step_update = StepUpdate::none;
  /// Each decode step evicts down to the budget; else every new entry is kept.
  bool evicts = false;
  bool fills_recent = false;  ///< `recent` is the budget minus the sinks
  /// Of a host that ranks nothing: the rest of its budget is drawn with this seed.
  std::optional<int64_t> seed = {};
  bool scores_given = false;                     ///< scores are no queries' but were given, or kept sets were
  std::shared_ptr<const GivenLayer> given = {};  ///< those of the layer, once they are known

  /// Whether entries are ranked by scores; if not, the always-kept and drawn entries fill the budget.
  bool ranks() const { return window > 0; }
  /// `newest` is the last position so far: n - 1 at the prompt's end.
  bool always_keeps(int64_t position, int64_t newest) const {
    return position < sinks || position > newest - recent ||
           (given && std::ranges::binary_search(given->always_kept, position));
  }
  /// The always-kept positions of a prompt, ascending.
  std::vector<int64_t> always_kept(int64_t prompt_tokens) const {
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      if (always_keeps(i, prompt_tokens - 1)) positions.push_back(i);
    }
    return positions;
  }
  /// The positions that are scored, ascending: the first ones, but for those that are always kept
  /// where scores were given.
  std::vector<int64_t> scored_positions() const {
    std::vector<int64_t> positions;
    for (int64_t i = 0; std::ssize(positions) < scored; ++i) {
      if (!given || !always_keeps(i, i)) positions.push_back(i);
    }
    return positions;
  }
};

namespace detail {

inline HostRules host_rules(const SnapKv& host, int64_t prompt_tokens, int64_t) {
  return {.name = "snapkv",
          .window = host.window,
          .recent = host.window,
          .scored = prompt_tokens - host.window,
          .pool = host.pool,
          .window_reduction = WindowReduction::mean};
}
inline HostRules host_rules(const H2o& host, int64_t prompt_tokens, int64_t) {
  return {.name = "h2o",
          .window = host.window,
          .sinks = host.sinks,
          .recent = host.recent_entries(),
          .scored = prompt_tokens,
          .window_reduction = WindowReduction::sum,
          .step_update = StepUpdate::accumulate,
          .evicts = true};
}
inline HostRules host_rules(const Tova& host, int64_t prompt_tokens, int64_t) {
  return {.name = "tova",
          .window = 1,
          .sinks = host.sinks,
          .scored = prompt_tokens,
          .step_update = StepUpdate::replace,
          .evicts = true};
}
inline HostRules host_rules(const StreamingLlm& host, int64_t, int64_t budget) {
  return {.name = "streaming-llm",
          .sinks = host.sinks,
          .recent = budget - host.sinks,
          .evicts = true,
          .fills_recent = true};
}
inline HostRules host_rules(const RandomHost& host, int64_t, int64_t) {
  return {.name = "random", .sinks = host.sinks, .recent = host.window, .seed = host.seed};
}
inline HostRules host_rules(const Given& host, int64_t prompt_tokens, int64_t) {
  HostRules rules{
      .name = "given", .evicts = host.layer && host.layer->evict, .scores_given = true, .given = host.layer};
  if (host.layer && host.layer->keeps()) return rules;
  rules.window = host.window;
  rules.scored = prompt_tokens - (host.layer ? std::ssize(host.layer->always_kept) : 0);
  return rules;
}

}  // namespace detail

/// The rules of a host for one prompt and budget.
///
/// prompt_tokens  n
/// budget         entries kept per KV head; the rules of hosts that rank entries do not depend on it
inline HostRules rules_of(const Host& host, int64_t prompt_tokens, int64_t budget) {
  return std::visit([&](const auto& one) { return detail::host_rules(one, prompt_tokens, budget); }, host);
}

/// The rules by which a cache is rebuilt during decoding: the step's query alone ranks all entries so far,
/// and hosts that do not evict keep all that entered since the prompt's end.
///
/// tokens   so far: n + t + 1 at step t
/// entered  t + 1
inline HostRules rebuild_rules(const Host& host, int64_t tokens, int64_t entered) {
  HostRules rules = rules_of(host, tokens, 0);
  rules.window = 1;
  if (rules.evicts) return rules;
  rules.recent += entered;
  rules.scored -= entered;
  return rules;
}

/// The number of entries that such a rebuild keeps of a KV head.
///
/// budget  of the head at the prompt's end
inline int64_t rebuild_budget(const HostRules& rules, int64_t budget, int64_t entered) {
  return rules.evicts ? budget : budget + entered;
}

/// The rules that depend on neither the prompt nor the budget.
inline bool evicts(const Host& host) { return rules_of(host, 0, 0).evicts; }
inline bool ranks(const Host& host) { return rules_of(host, 0, 0).ranks(); }
/// The path that the host `given` names; null for other hosts.
inline const std::string* given_file(const Host& host) {
  const Given* const given = std::get_if<Given>(&host);
  return given ? &given->file : nullptr;
}
/// The host `given` with what its file has of a layer.
inline Host with_layer(const Host& host, std::shared_ptr<const GivenLayer> layer) {
  Given given = std::get<Given>(host);
  given.layer = std::move(layer);
  return given;
}
inline std::string_view name_of(const Host& host) { return rules_of(host, 0, 0).name; }

/// The names of the hosts that rank entries, such as "snapkv, h2o".
inline std::string ranking_hosts() {
  std::string names;
  for_each_alternative<Host>([&](const Host& host) {
    const HostRules rules = rules_of(host, 0, 0);
    if (!rules.ranks()) return;
    (names += names.empty() ? "" : ", ") += rules.name;
    if (rules.scores_given) names += " with scores";
  });
  return names;
}

}  // namespace kvbound
