#include "target_doubt.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/merge_group_errors.hpp>
#include <kvbound/reference/nearest_key.hpp>

namespace kvbound::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kBlock = 64;  // keys that leave, at a time

// Rows of length 1, or zero.
Matrix directions(MatrixView keys, const std::vector<int64_t>& rows) {
  Matrix result(static_cast<int64_t>(rows.size()), keys.cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    const VectorView key = keys.row(rows[i]);
    double largest = 0;
    for (const double x : key) largest = std::max(largest, std::abs(x));
    if (largest == 0) continue;
    double sum = 0;
    for (const double x : key) sum += (x / largest) * (x / largest);
    const double norm = std::sqrt(sum);
    for (size_t c = 0; c < key.size(); ++c) result.row(static_cast<int64_t>(i))[c] = key[c] / largest / norm;
  }
  return result;
}

// What each key contributes to the errors of its cosines: that of a cosine with a key that is exact, so that two of them are no
// less than the error of their cosine.
std::vector<double> cosine_errors(MatrixView keys, const reference::Arithmetic& arithmetic) {
  const std::vector<double> exact_key(static_cast<size_t>(keys.cols), 1),
      exact(static_cast<size_t>(keys.cols));
  std::vector<double> errors;
  for (int64_t i = 0; i < keys.rows; ++i) {
    const VectorView key = keys.row(i);
    errors.push_back(
        reference::cosine_error(key, storage_errors(key, arithmetic), exact_key, exact, arithmetic));
  }
  return errors;
}

std::vector<int64_t> others_than(const std::vector<int64_t>& kept, int64_t count) {
  std::vector<int64_t> others;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::ranges::binary_search(kept, i)) others.push_back(i);
  }
  return others;
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
  const std::vector<int64_t> leaving = others_than(kept, keys.rows);
  const std::vector<double> errors = cosine_errors(keys, arithmetic);
  const Matrix staying = directions(keys, kept);
  for (size_t first = 0; first < leaving.size(); first += kBlock) {
    const auto last = std::min(leaving.size(), first + static_cast<size_t>(kBlock));
    const std::vector<int64_t> block(leaving.begin() + static_cast<std::ptrdiff_t>(first),
                                     leaving.begin() + static_cast<std::ptrdiff_t>(last));
    const Matrix cosines = reference::attention_logits(directions(keys, block), staying, 1);
    for (size_t i = 0; i < block.size(); ++i) {
      std::vector<double> off;
      for (const int64_t position : kept) {
        off.push_back(
            std::min(2.0, errors[static_cast<size_t>(block[i])] + errors[static_cast<size_t>(position)]));
      }
      const TargetRule rule(target, cosines.row(static_cast<int64_t>(i)), off);
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
