// What a score measures and how it is reduced over the query heads of a KV head, as plain data.
#pragma once

#include <optional>
#include <variant>

#include "policy.hpp"

namespace kvbound {

/// Which change of a query's output a score measures; formulas: reference/eviction/obcache.hpp.
enum class Change {
  value,  ///< the entry's value is zeroed
  key,    ///< second-order term of shrinking its key
  joint,  ///< second-order term of shrinking key and value together
  exact,  ///< the entry is removed
  /// key and value are zeroed and the entry stays; only oracle recall ranks by this change, no policy does
  slot,
};

/// Whether the dominant entry of a query, which holds more than half of its attention, is scored by the
/// softmax of the other entries.
constexpr bool leaves_out_dominant(Change change) {
  switch (change) {
    case Change::value:
    case Change::key:
      return false;
    case Change::joint:
    case Change::exact:
    case Change::slot:
      return true;
  }
  return true;
}

/// How the scores of the query heads that share a KV head become one.
enum class GroupReduction { mean, sum };

struct ScoreRules {
  std::optional<Change> change;  ///< none: the score is the attention weight itself
  Space space = Space::head;     ///< space in which the change is measured
  GroupReduction group = GroupReduction::mean;
};

namespace detail {

inline ScoreRules score_rules(const AttentionScore&) { return {}; }
inline ScoreRules score_rules(const ObcacheValue& score) {
  return {Change::value, score.space, GroupReduction::sum};
}
inline ScoreRules score_rules(const ObcacheKey& score) {
  return {Change::key, score.space, GroupReduction::sum};
}
inline ScoreRules score_rules(const ObcacheJoint& score) {
  return {Change::joint, score.space, GroupReduction::sum};
}
inline ScoreRules score_rules(const ExactRemoval& score) {
  return {Change::exact, score.space, GroupReduction::sum};
}

}  // namespace detail

inline ScoreRules rules_of(const Score& score) {
  return std::visit([](const auto& one) { return detail::score_rules(one); }, score);
}

}  // namespace kvbound
