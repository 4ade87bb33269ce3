// The rules that distinguish the merging methods, as plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "policy.hpp"

namespace kvbound {

/// How the key and value of a cluster are determined.
struct KeyRule {
  MergedKey key = MergedKey::min_norm;
  MergeGqa gqa = MergeGqa::joint;
  double rank = 0.3;  ///< for `joint`: singular values below this share of the largest are dropped
};

/// ZIP's mean log score counts as 0 below this share of the largest log score: there is then no scale.
inline constexpr double kSingularZip = 1e-12;

struct MergeRules {
  bool merges = true;              ///< evicted entries are merged into kept entries instead of dropped
  std::optional<Cam> spread = {};  ///< an evicted value is spread over several entries; no clusters form
  bool votes = false;              ///< a merged entry is weighted by the number of entries that it replaces
  /// Evicted entries merge with the entry of the most similar kept key; nullopt: no single target.
  std::optional<SimilarTarget> target = {};
  /// How scores are predicted; nullopt: the method does not weight members by predicted scores.
  std::optional<PredictedScores> prediction = {};
  /// How query heads are combined; nullopt: the method does not weight members by predicted scores.
  std::optional<MergeGqa> gqa = {};
  /// How a cluster's key is formed; nullopt: the method does not weight members by predicted scores.
  std::optional<MergedKey> key = {};
  MergeOrder order = MergeOrder::evict_first;
  std::optional<int64_t> period = {};  ///< decode steps after which the cache is rebuilt from the full one

  /// Whether scores are predicted by a moving average over past queries.
  bool averages() const { return prediction && prediction->predict == Prediction::ema; }
  /// Whether decode step `step` (counted from 0) begins with a rebuild.
  bool rebuilds_at(int64_t step) const { return period && (step + 1) % *period == 0; }
  /// How many of the first `steps` decode steps begin with a rebuild.
  int64_t rebuilds_in(int64_t steps) const { return period ? steps / *period : 0; }
};

namespace detail {

inline MergeRules merge_rules(const NoMerge&) { return {.merges = false}; }
inline MergeRules merge_rules(const KeepKv& merge) {
  return {.votes = true,
          .target = merge,
          .prediction = merge.prediction,
          .gqa = merge.gqa,
          .key = merge.key,
          .order = merge.order,
          .period = merge.period};
}
inline MergeRules merge_rules(const ConvexMerge& merge) {
  return {.target = merge, .prediction = merge.prediction, .gqa = merge.gqa, .key = MergedKey::convex};
}
inline MergeRules merge_rules(const D2o& merge) { return {.target = merge}; }
inline MergeRules merge_rules(const KvMerger& merge) { return {.target = merge}; }
inline MergeRules merge_rules(const Cam& merge) { return {.spread = merge}; }

}  // namespace detail

inline MergeRules rules_of(const Merge& merge) {
  return std::visit([](const auto& one) { return detail::merge_rules(one); }, merge);
}

}  // namespace kvbound
