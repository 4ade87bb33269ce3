// What sets one host apart from the others, as plain facts that every backend and every judge reads off.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "policy.hpp"

namespace kvbound {

/// Whom a host keeps in any case, whom it scores, and by how many queries.
///
///     always kept  <=>  position < sinks  or  position > newest - recent
struct HostRules {
  int64_t window = 0;  ///< the last prompt queries, which judge; 0: nobody does
  int64_t sinks = 0;   ///< first positions that always stay
  int64_t recent = 0;  ///< newest positions that always stay
  int64_t scored = 0;  ///< positions 0..scored - 1 are scored at the prompt's end

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

/// Whether a host brings the cache back to its budget after each decode step; else it grows.
inline bool evicts(const Host& host) { return !std::holds_alternative<SnapKv>(host); }

/// prompt_tokens  n
/// budget         entries kept per KV head; of no matter to hosts that rank entries
inline HostRules rules_of(const SnapKv& host, int64_t prompt_tokens, int64_t) {
  return {host.window, 0, host.window, prompt_tokens - host.window};
}
inline HostRules rules_of(const H2o& host, int64_t prompt_tokens, int64_t) {
  return {host.window, host.sinks, host.recent_entries(), prompt_tokens};
}
inline HostRules rules_of(const Tova& host, int64_t prompt_tokens, int64_t) {
  return {1, host.sinks, 0, prompt_tokens};
}
inline HostRules rules_of(const StreamingLlm& host, int64_t, int64_t budget) {
  return {0, host.sinks, budget - host.sinks, 0};
}
inline HostRules rules_of(const Host& host, int64_t prompt_tokens, int64_t budget) {
  return std::visit([&](const auto& one) { return rules_of(one, prompt_tokens, budget); }, host);
}

}  // namespace kvbound
