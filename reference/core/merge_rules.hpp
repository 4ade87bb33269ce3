// What sets one merging method apart from the others, as plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "policy.hpp"

namespace kvbound {

struct MergeRules {
  bool merges = true;              ///< evicted entries leave something behind
  std::optional<Cam> spread = {};  ///< an evicted value is spread over several entries; no clusters form
  bool votes = false;              ///< merged entries count for all that they replace
  std::optional<SimilarTarget> target =
      {};  ///< evicted entries merge with the most similar kept key; none: no one target
  std::optional<PredictedScores> prediction = {};  ///< of methods that weigh by predicted scores
  std::optional<MergeGqa> gqa = {};   ///< how query heads agree, of methods that weigh by predicted scores
  std::optional<MergedKey> key = {};  ///< likewise: which key stands for a cluster
  MergeOrder order = MergeOrder::evict_first;
  std::optional<int64_t> period = {};  ///< decode steps after which the cache is rebuilt from the full one

  /// Whether scores are predicted by a moving average over past queries.
  bool averages() const { return prediction && prediction->predict == Prediction::ema; }
  /// Whether decode step `step`, from 0, begins with a rebuild.
  bool rebuilds_at(int64_t step) const { return period && (step + 1) % *period == 0; }
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
