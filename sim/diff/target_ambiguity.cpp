#include "target_ambiguity.hpp"

#include <algorithm>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>
#include <kvbound/reference/merging/nearest_key.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kBlock = 64;  // evicted keys per block

// Each key's contribution to the errors of its cosines: the error of its cosine with an exact key. The sum of two keys'
// contributions is at least the error of their cosine.
std::vector<double> cosine_errors(MatrixView keys, const reference::Arithmetic& arithmetic) {
  const std::vector<double> exact_key(keys.cols, 1), exact(static_cast<size_t>(keys.cols));
  std::vector<double> errors;
  for (int64_t i = 0; i < keys.rows; ++i) {
    const VectorView key = keys.row(i);
    errors.push_back(
        reference::cosine_error(key, storage_errors(key, arithmetic), exact_key, exact, arithmetic));
  }
  return errors;
}

}  // namespace

TargetRule::TargetRule(const SimilarTarget& target, VectorView cosines, VectorView errors)
    : limit_(target.threshold ? target.threshold->value() : -kInfinity),
      cosines_(cosines),
      errors_(errors),
      surely_(-kInfinity) {
  for (size_t j = 0; j < cosines.size(); ++j) surely_ = std::max(surely_, cosines[j] - errors[j]);
}

bool TargetRule::may_merge_with(size_t other) const {
  const double most = std::min(1.0, cosines_[other] + errors_[other]);
  return most > limit_ && most >= surely_;
}

bool TargetRule::may_be_dropped() const { return cosines_.empty() || surely_ <= limit_; }

std::vector<MemberRange> member_ranges(MatrixView keys, const std::vector<int64_t>& kept,
                                       const SimilarTarget& target, const reference::Arithmetic& arithmetic) {
  std::vector<MemberRange> ranges(kept.size());
  const std::vector<int64_t> leaving = reference::others_than(kept, keys.rows);
  const std::vector<double> errors = cosine_errors(keys, arithmetic);
  const Matrix staying = reference::key_directions(reference::rows_of(keys, kept));
  for (size_t first = 0; first < leaving.size(); first += kBlock) {
    const auto last = std::min(leaving.size(), first + static_cast<size_t>(kBlock));
    const std::vector<int64_t> block(leaving.begin() + static_cast<std::ptrdiff_t>(first),
                                     leaving.begin() + static_cast<std::ptrdiff_t>(last));
    const Matrix cosines =
        reference::attention_logits(reference::key_directions(reference::rows_of(keys, block)), staying, 1);
    for (size_t i = 0; i < block.size(); ++i) {
      std::vector<double> off;
      for (const int64_t position : kept) {
        off.push_back(std::min(2.0, errors[block[i]] + errors[position]));
      }
      const TargetRule rule(target, cosines.row(i), off);
      std::vector<size_t> possible;
      for (size_t j = 0; j < kept.size(); ++j) {
        if (rule.may_merge_with(j)) possible.push_back(j);
      }
      const bool sure = possible.size() == 1 && !rule.may_be_dropped();
      for (const size_t j : possible) {
        ++ranges[j].most;
        ranges[j].least += sure;
      }
    }
  }
  return ranges;
}

std::vector<double> storage_errors(VectorView numbers, const reference::Arithmetic& arithmetic) {
  std::vector<double> errors(numbers.begin(), numbers.end());
  for (double& number : errors) number = arithmetic.input * std::abs(number) + arithmetic.input_floor;
  return errors;
}

}  // namespace kvbound::sim
