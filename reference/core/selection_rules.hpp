// The options and properties of a selection, as plain data.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "policy.hpp"

namespace kvbound {

struct SelectionRules {
  /// Options of CriticalKV's two stages; nullopt: the selection has no stages.
  std::optional<TwoStage> two_stage = {};
  bool records_stage_two = false;     ///< the selection decides by stage two's scores and records them
  bool in_decoding = false;           ///< evictions during decoding follow the two stages, too
  bool keeps_largest_scores = false;  ///< the kept candidates are those with the largest scores
  bool is_greedy = false;             ///< entries are removed one by one, each choice given the former ones
  bool weighs_attention =
      false;  ///< attention of the window's queries decides, whatever the host's scores are
};

namespace detail {

inline SelectionRules selection_rules(const TopK&) { return {.keeps_largest_scores = true}; }
inline SelectionRules selection_rules(const Critical& selection) {
  return {.two_stage = selection,
          .records_stage_two = true,
          .in_decoding = true,
          .weighs_attention = !selection.alpha};
}
inline SelectionRules selection_rules(const ThetaSweep& selection) {
  return {.two_stage = selection, .weighs_attention = true};
}
inline SelectionRules selection_rules(const Greedy&) { return {.is_greedy = true, .weighs_attention = true}; }

}  // namespace detail

/// The factors lambda of theta-sweep, in the order in which they are tried: 0, 25 geometric points
/// from 1e-3 to 1e3, infinity.
inline std::vector<double> theta_sweep_lambdas() {
  constexpr int kPoints = 25;
  std::vector<double> lambdas{0};
  for (int i = 0; i < kPoints; ++i) lambdas.push_back(std::pow(10.0, -3 + 6.0 * i / (kPoints - 1)));
  lambdas.push_back(std::numeric_limits<double>::infinity());
  return lambdas;
}

inline SelectionRules rules_of(const Selection& selection) {
  return std::visit([](const auto& one) { return detail::selection_rules(one); }, selection);
}

}  // namespace kvbound
