#include "merge_errors.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "attention.hpp"
#include "error_bounds.hpp"
#include "inner_product.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

namespace {

constexpr double kUnit = 0x1p-53;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Relative: more than rounding does to sums of nonnegative terms that make up a bound.
constexpr double kOwnRounding = 0x1p-30;
// Where a group has no ZIP scale: keep_kv.hpp.
constexpr double kSingular = 1e-12;

// What is compared with the double reference: its own exact value.
Arithmetic exact() { return {.unit = 0, .smallest = 0x1p-1022, .exponential = 0, .rescalings = 0}; }

MatrixView as_row(VectorView vector) { return {vector.data(), 1, static_cast<int64_t>(vector.size())}; }

double norm(VectorView vector) { return std::sqrt(inner_product(vector, vector)); }
double distance(VectorView x, VectorView y) { return std::sqrt(squared_distance(x, y)); }

// scale sum_c |query_c key_c|
double absolute_logit(VectorView query, VectorView key, double scale) {
  double sum = 0;
  for (size_t c = 0; c < query.size(); ++c) sum += std::abs(query[c] * key[c]);
  return std::abs(scale) * sum;
}

CacheEntries rows(const CacheEntries& cache, const std::vector<int64_t>& wanted) {
  CacheEntries chosen;
  for (const int64_t row : wanted) {
    chosen.positions.push_back(cache.positions[static_cast<size_t>(row)]);
    chosen.votes.push_back(cache.votes[static_cast<size_t>(row)]);
    chosen.keys.append_row(cache.keys.row(row));
    chosen.values.append_row(cache.values.row(row));
  }
  return chosen;
}

double sum(VectorView numbers) {
  double total = 0;
  for (const double number : numbers) total += number;
  return total;
}

// A group's exact quantities, as far as double precision gives them, and the sums that its errors are made of.
class GroupErrors {
 public:
  GroupErrors(VectorView query, double scale, const CacheEntries& members)
      : members_(members),
        count_(static_cast<double>(members.entries())),
        dimensions_(static_cast<double>(query.size())),
        logits_(attention_logits(as_row(query), members.keys, scale)),
        exponents_(logit_errors(as_row(query), members.keys, scale, exact())) {
    logit_error_ = *std::ranges::max_element(exponents_.row(0));
    for (int64_t j = 0; j < members.entries(); ++j) {
      largest_ = std::max(largest_, absolute_logit(query, members.keys.row(j), scale));
    }
    std::vector<double> weighted;
    for (size_t j = 0; j < members.votes.size(); ++j) {
      const double log_votes = std::log(members.votes[j]);
      weighted.push_back(logits_.row(0)[j] + log_votes);
      exponents_.row(0)[j] += exponential(exact()) * std::abs(log_votes) +
                              2 * kUnit * (std::abs(logits_.row(0)[j]) + std::abs(log_votes));
    }
    softmax_ = softmax_errors(weighted, exponents_.row(0), exact());
    for (const double logit : weighted) weights_.push_back(weight_of(logit, softmax_));
    mean_ = logits_(0, 0);
    for (size_t j = 0; j < weights_.size(); ++j) mean_ += weights_[j] * (logits_.row(0)[j] - logits_(0, 0));
    const double votes = sum(members.votes);
    divergence_ = std::max(0.0, mean_ - (softmax_.log_sum_exp - std::log(votes)));
    double condition = 3;
    if (divergence_ <= 0.6) {
      condition = 0;
      for (size_t j = 0; j < weights_.size(); ++j) {
        condition += std::abs(weights_[j] - members.votes[j] / votes * std::exp(divergence_));
      }
    }
    divergence_error_ = (exponential(exact()) + sum_gamma()) * condition + growth(6 * kUnit * largest_) +
                        (exponential(exact()) + kUnit) * divergence_;
  }

  /// ln W
  double log_weight() const { return softmax_.log_sum_exp; }

  /// T of the merged entry. absolute_logit: of its key.
  double logit_error(MergedKey key, double absolute_logit) const {
    const double mean_error = logit_error_ + 3 * sum_gamma() * largest_;
    const double conditioned = mean_error * (key == MergedKey::zip ? largest_scale() : 1);
    const double correction = gamma(8 * dimensions_ + 40, exact()) * (divergence_ + divergence_error_);
    const double scaling = key == MergedKey::zip ? 4 * kUnit * (divergence_ + largest_) : 0;
    return logit_error_ + conditioned + divergence_error_ + correction + scaling +
           2 * kUnit * absolute_logit + gamma(count_, exact());
  }

 private:
  double sum_gamma() const { return gamma(count_ + 6, exact()); }

  // S, at least |1 - KL/m| as it may have been computed.
  double largest_scale() const {
    const double mean_size = std::abs(mean_), error = computed_mean_error();
    double largest_logit = 0;
    for (const double logit : logits_.row(0)) largest_logit = std::max(largest_logit, std::abs(logit));
    const double singular = kSingular * largest_logit;
    if (mean_size + error < singular * (1 - kOwnRounding)) return 1;
    const double least = std::max(mean_size - error, singular * (1 - kOwnRounding));
    const double correction = divergence_ + divergence_error_;
    return least > 0 ? 1 + correction / least : 1 + (correction > 0 ? kInfinity : 0);
  }

  // mu: how far the weighted mean of the logits may be off.
  double computed_mean_error() const {
    if (!(softmax_.growth < 0.5)) return kInfinity;
    double spread = 0;
    for (size_t j = 0; j < weights_.size(); ++j) {
      spread += weights_[j] * growth(exponents_.row(0)[j]) * std::abs(logits_.row(0)[j] - mean_);
    }
    return spread / (1 - softmax_.growth) + logit_error_ + 3 * sum_gamma() * largest_;
  }

  const CacheEntries& members_;
  double count_;
  double dimensions_;
  Matrix logits_;                // [1, members]
  Matrix exponents_;             // T_j of the members' weights
  double logit_error_ = 0;       // delta
  double largest_ = 0;           // a
  SoftmaxErrors softmax_;        // of ln p + z
  std::vector<double> weights_;  // w/W
  double mean_ = 0;              // m
  double divergence_ = 0;        // KL
  double divergence_error_ = 0;
};

}  // namespace

MergedRows rows_of(const MergeGroup& group, const CacheEntries& before, const CacheEntries& after) {
  MergedRows result{{before.find(group.into)}, after.find(group.into)};
  for (const int64_t position : group.from) result.members.push_back(before.find(position));
  assert(result.merged >= 0 && *std::ranges::min_element(result.members) >= 0);
  return result;
}

std::vector<double> output_error(VectorView query, double scale, const CacheEntries& cache) {
  const AttentionErrors errors =
      attention_errors(as_row(query), cache.keys, cache.values, scale, cache.votes, exact());
  return {errors.output.numbers().begin(), errors.output.numbers().end()};
}

double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& before,
                            const CacheEntries& after, std::span<const MergedRows> groups) {
  assert(key != MergedKey::convex);
  const AttentionOutput whole = attention(as_row(query), before.keys, before.values, scale, before.votes);
  const VectorView output = whole.output.row(0);
  const double before_error = norm(output_error(query, scale, before));
  const double after_error = norm(output_error(query, scale, after));
  double moved = 0, values_error = 0, lost = 0, farthest = 0;
  for (const MergedRows& group : groups) {
    const CacheEntries members = rows(before, group.members);
    const GroupErrors errors(query, scale, members);
    const double share = std::exp(errors.log_weight() - whole.log_sum_exp.front());
    const double off =
        growth(errors.logit_error(key, absolute_logit(query, after.keys.row(group.merged), scale)));
    const double value_error = norm(output_error(query, scale, members));
    const Matrix mean = attention(as_row(query), members.keys, members.values, scale, members.votes).output;
    const double far = distance(mean.row(0), output) + value_error + before_error;
    farthest = std::max(farthest, far + value_error);
    lost += share > 0 ? share * off : 0;
    moved += share > 0 ? share * off * far : 0;
    values_error += share > 0 ? share * (1 + off) * value_error : 0;
  }
  double difference = kInfinity;
  if (lost < 0.5) {
    difference = (moved + values_error) / (1 - lost);
  }
  for (int64_t j = 0; j < before.entries(); ++j) {
    farthest = std::max(farthest, distance(before.values.row(j), output) + before_error);
  }
  return (std::min(difference, farthest) + before_error + after_error) * (1 + kOwnRounding);
}

}  // namespace kvbound::reference
