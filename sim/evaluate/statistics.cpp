#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/traces/portable_random.hpp>

namespace kvbound::sim {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// The value below which a share of ascending values lies, linear between neighbours.
double quantile(std::span<const double> ascending, double share) {
  const double place = share * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<size_t>(place), above = std::min(below + 1, ascending.size() - 1);
  return ascending[below] + (place - std::floor(place)) * (ascending[above] - ascending[below]);
}

// Ranks from 0; equal numbers have the mean of theirs.
std::vector<double> ranks_of(std::span<const double> numbers) {
  std::vector<size_t> order(numbers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return numbers[a] < numbers[b]; });
  std::vector<double> ranks(numbers.size());
  for (size_t first = 0, last; first < order.size(); first = last) {
    for (last = first; last < order.size() && numbers[order[last]] == numbers[order[first]];) ++last;
    for (size_t i = first; i < last; ++i) ranks[order[i]] = static_cast<double>(first + last - 1) / 2;
  }
  return ranks;
}

// Pearson's; NaN if either does not vary.
double correlation(std::span<const double> x, std::span<const double> y) {
  const double x_mean = mean_of(x), y_mean = mean_of(y);
  double products = 0, x_squares = 0, y_squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    products += (x[i] - x_mean) * (y[i] - y_mean);
    x_squares += (x[i] - x_mean) * (x[i] - x_mean);
    y_squares += (y[i] - y_mean) * (y[i] - y_mean);
  }
  if (x_squares == 0 || y_squares == 0) return kNone;
  return std::clamp(products / std::sqrt(x_squares * y_squares), -1.0, 1.0);
}

}  // namespace

double mean_of(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

std::optional<Interval> Bootstrap::interval(
    int64_t items, const std::function<double(std::span<const int64_t>)>& statistic) const {
  if (items < 2) return std::nullopt;
  std::vector<double> values;
  std::vector<int64_t> drawn(items);
  for (int64_t b = 0; b < resamples_; ++b) {
    const traces::Stream random =
        traces::Stream(static_cast<uint64_t>(seed_)).child(static_cast<uint64_t>(b));
    for (size_t i = 0; i < drawn.size(); ++i)
      drawn[i] = static_cast<int64_t>(random.uniform(i) * static_cast<double>(items));
    if (const double value = statistic(drawn); std::isfinite(value)) values.push_back(value);
  }
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  return Interval{quantile(values, 0.025), quantile(values, 0.975)};
}

std::optional<Estimate> Bootstrap::mean(std::span<const double> values) const {
  if (values.empty()) return std::nullopt;
  Estimate estimate{mean_of(values), {}, {}, std::ssize(values)};
  if (values.size() < 2) return estimate;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
  const auto count = static_cast<double>(values.size());
  estimate.standard_error = std::sqrt(squares / (count - 1) / count);
  estimate.interval = interval(estimate.count, [&](std::span<const int64_t> drawn) {
    double sum = 0;
    for (const int64_t i : drawn) sum += values[i];
    return sum / count;
  });
  return estimate;
}

double rank_correlation(std::span<const double> x, std::span<const double> y) {
  require_equal("numbers of x", std::ssize(x), "numbers of y", std::ssize(y));
  return x.size() < 2 ? kNone : correlation(ranks_of(x), ranks_of(y));
}

double share_ordered_alike(std::span<const double> x, std::span<const double> y) {
  require_equal("numbers of x", std::ssize(x), "numbers of y", std::ssize(y));
  double alike = 0;
  int64_t pairs = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = i + 1; j < x.size(); ++j) {
      if (y[i] == y[j]) continue;
      ++pairs;
      alike += x[i] == x[j] ? 0.5 : (x[i] < x[j]) == (y[i] < y[j]) ? 1.0 : 0.0;
    }
  }
  return pairs == 0 ? kNone : alike / static_cast<double>(pairs);
}

}  // namespace kvbound::sim
