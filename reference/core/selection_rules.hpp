// What a selection needs and records, as plain data.
#pragma once

#include <optional>
#include <variant>

#include "policy.hpp"

namespace kvbound {

struct SelectionRules {
  std::optional<TwoStage> two_stage =
      {};                             ///< the options of CriticalKV's stages, of selections that form them
  bool records_stage_two = false;     ///< stage two's scores decide, and are recorded
  bool in_decoding = false;           ///< evictions while decoding follow the two stages, too
  bool keeps_largest_scores = false;  ///< the kept candidates are those of largest score
  bool is_greedy = false;             ///< the kept set comes of removals one by one, each by all the others
};

namespace detail {

inline SelectionRules selection_rules(const TopK&) { return {.keeps_largest_scores = true}; }
inline SelectionRules selection_rules(const Critical& selection) {
  return {.two_stage = selection, .records_stage_two = true, .in_decoding = true};
}
inline SelectionRules selection_rules(const ThetaSweep& selection) { return {.two_stage = selection}; }
inline SelectionRules selection_rules(const Greedy&) { return {.is_greedy = true}; }

}  // namespace detail

inline SelectionRules rules_of(const Selection& selection) {
  return std::visit([](const auto& one) { return detail::selection_rules(one); }, selection);
}

}  // namespace kvbound
