// Statistics of figures that are paired by task: means with their uncertainty, and rank correlations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace kvbound::sim {

/// The mean of at least one number.
double mean_of(std::span<const double> numbers);

/// An interval that holds 95 % of the values that resampled tasks give.
struct Interval {
  double low = 0, high = 0;
};

/// A mean over tasks.
struct Estimate {
  double mean = 0;
  std::optional<double> standard_error;  ///< sample standard deviation / sqrt(n); of two tasks or more
  std::optional<Interval> interval;      ///< percentile bootstrap over tasks; likewise
  int64_t count = 0;
};

/// Draws tasks with replacement; the same ones for every figure, so that figures of the
/// same tasks remain paired.
class Bootstrap {
 public:
  Bootstrap(int64_t resamples, int64_t seed) : resamples_(resamples), seed_(seed) {}

  /// The interval of a statistic of `items` items.
  ///
  /// statistic  called with the indices of drawn items, [items]; what is not finite is left out
  /// returns    the values between which the middle 95 % lie (linear between order statistics); none for
  ///            fewer than two items, or if no value is finite
  std::optional<Interval> interval(int64_t items,
                                   const std::function<double(std::span<const int64_t>)>& statistic) const;

  /// The mean of the values; none if there is none.
  std::optional<Estimate> mean(std::span<const double> values) const;

 private:
  int64_t resamples_, seed_;
};

/// Spearman's rank correlation: Pearson's correlation of the ranks, where equal numbers have
/// the mean of their ranks.
///
/// x, y     of equal length
/// returns  in -1..1; NaN if all of x or all of y are equal, or there are fewer than two
double rank_correlation(std::span<const double> x, std::span<const double> y);

/// Of the pairs i < j with y_i != y_j, the share in which x has the same order; equal x count 1/2.
///
/// returns  in 0..1, 1/2 if x says nothing; NaN if there is no such pair
double share_ordered_alike(std::span<const double> x, std::span<const double> y);

}  // namespace kvbound::sim
