#include "target_rule.hpp"

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

// Each key's contribution to the errors of its cosines: the error of its cosine with an exact key. The sum of
// two keys' contributions is at least the error of their cosine.
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

int64_t possible_outcomes(const TargetRule& rule, size_t others) {
  int64_t possible = rule.may_be_dropped() ? 1 : 0;
  for (size_t j = 0; j < others; ++j) possible += rule.may_merge_with(j);
  return possible;
}

void visit_uncertain_cosines(
    MatrixView keys, const std::vector<int64_t>& entries, const std::vector<int64_t>& others,
    const reference::Arithmetic& arithmetic,
    const std::function<void(int64_t entry, VectorView cosines, VectorView errors)>& visit) {
  const std::vector<double> errors = cosine_errors(keys, arithmetic);
  const Matrix directions = reference::key_directions(reference::rows_of(keys, others));
  std::vector<double> off(others.size());
  for (size_t first = 0; first < entries.size(); first += kBlock) {
    const auto last = std::min(entries.size(), first + static_cast<size_t>(kBlock));
    const std::vector<int64_t> block(entries.begin() + static_cast<std::ptrdiff_t>(first),
                                     entries.begin() + static_cast<std::ptrdiff_t>(last));
    const Matrix cosines = reference::attention_logits(
        reference::key_directions(reference::rows_of(keys, block)), directions, 1);
    for (size_t i = 0; i < block.size(); ++i) {
      for (size_t j = 0; j < others.size(); ++j) off[j] = std::min(2.0, errors[block[i]] + errors[others[j]]);
      visit(static_cast<int64_t>(first + i), cosines.row(static_cast<int64_t>(i)), off);
    }
  }
}

std::vector<MemberRange> member_ranges(MatrixView keys, const std::vector<int64_t>& kept,
                                       const SimilarTarget& target, const reference::Arithmetic& arithmetic) {
  std::vector<MemberRange> ranges(kept.size());
  const std::vector<int64_t> leaving = reference::others_than(kept, keys.rows);
  visit_uncertain_cosines(
      keys, leaving, kept, arithmetic, [&](int64_t, VectorView cosines, VectorView errors) {
        const TargetRule rule(target, cosines, errors);
        const bool sure = !rule.may_be_dropped() && possible_outcomes(rule, kept.size()) == 1;
        for (size_t j = 0; j < kept.size(); ++j) {
          if (!rule.may_merge_with(j)) continue;
          ++ranges[j].most;
          ranges[j].least += sure;
        }
      });
  return ranges;
}

std::vector<double> storage_errors(VectorView numbers, const reference::Arithmetic& arithmetic) {
  std::vector<double> errors(numbers.begin(), numbers.end());
  for (double& number : errors) number = arithmetic.input * std::abs(number) + arithmetic.input_floor;
  return errors;
}

}  // namespace kvbound::sim
