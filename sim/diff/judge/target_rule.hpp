// The targets that an evicted entry may have merged with, where rounding leaves more than one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// Decides which merge targets are possible, given cosines of an evicted entry's key with
/// others and their error bounds.
class TargetRule {
 public:
  /// target           its threshold decides whether a key is similar enough
  /// cosines, errors  [others]; must outlive the rule
  TargetRule(const SimilarTarget& target, VectorView cosines, VectorView errors);

  /// Whether cosines within their errors may lead to a merge with this entry, or to a drop.
  bool may_merge_with(size_t other) const;
  bool may_be_dropped() const;

 private:
  double limit_;  // a merge requires a larger cosine
  VectorView cosines_, errors_;
  double surely_;  // lower bound on the largest cosine
};

/// Number of outcomes that are possible within the error bounds: entries to merge with, and being dropped.
int64_t possible_outcomes(const TargetRule& rule, size_t others);

/// Cosines of keys with others, and their error bounds.
///
/// entries, others  positions
/// arithmetic       its `input` is the rounding error of storing keys
/// visit            called with (index of the entry, cosines [others], errors [others]), by ascending index
void visit_uncertain_cosines(
    MatrixView keys, const std::vector<int64_t>& entries, const std::vector<int64_t>& others,
    const reference::Arithmetic& arithmetic,
    const std::function<void(int64_t entry, VectorView cosines, VectorView errors)>& visit);

/// The least and the largest number of evicted entries that may have merged into one kept entry.
struct MemberRange {
  int64_t least = 0;
  int64_t most = 0;
};

/// For each kept entry, how many evicted entries may have merged into it, if each merges into the kept entry
/// with the most similar key.
///
/// keys        [n, head_dim]
/// kept        ascending
/// arithmetic  its `input` is the rounding error of storing keys
/// returns     [kept]
std::vector<MemberRange> member_ranges(MatrixView keys, const std::vector<int64_t>& kept,
                                       const SimilarTarget& target, const reference::Arithmetic& arithmetic);

/// Bounds on the rounding error of storing each number, [numbers].
std::vector<double> storage_errors(VectorView numbers, const reference::Arithmetic& arithmetic);

}  // namespace kvbound::sim
