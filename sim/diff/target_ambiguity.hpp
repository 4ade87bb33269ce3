// The targets that an entry may have merged with, where rounding leaves more than one.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// Cosines of a leaving key with others, each with a bound on how far a tested implementation's may be off.
class TargetRule {
 public:
  /// target           whose threshold decides whether anybody is near enough
  /// cosines, errors  [others]; they outlive the rule
  TargetRule(const SimilarTarget& target, VectorView cosines, VectorView errors);

  /// Whether a tested implementation whose cosines are within their errors may merge with this one, or with none.
  bool may_merge_with(size_t other) const;
  bool may_be_dropped() const;

 private:
  double limit_;  // merge only with who is above
  VectorView cosines_, errors_;
  double surely_;  // the largest cosine is no less
};

/// How many may have merged with each entry that stays, in all.
struct MemberRange {
  int64_t least = 0;
  int64_t most = 0;
};

/// For each of those who stay, how many of those who leave may have gone to it, where each goes to the most similar
/// one.
///
/// keys        [n, head_dim]
/// kept        ascending
/// arithmetic  its input is what storing keys cost
/// returns     [kept]
std::vector<MemberRange> member_ranges(MatrixView keys, const std::vector<int64_t>& kept,
                                       const SimilarTarget& target, const reference::Arithmetic& arithmetic);

/// What storing numbers may cost each.
std::vector<double> storage_errors(VectorView numbers, const reference::Arithmetic& arithmetic);

}  // namespace kvbound::sim
