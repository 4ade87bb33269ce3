// The median.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace kvbound::sim {

/// The median of at least one number; for an even count, the mean of the middle two. Infinity sorts last;
/// NaN if any number is NaN.
inline double median(std::vector<double> numbers) {
  assert(!numbers.empty());
  if (std::ranges::any_of(numbers, [](double number) { return std::isnan(number); })) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::ranges::nth_element(numbers, middle);
  if (numbers.size() % 2 == 1) return *middle;
  return std::midpoint(*std::max_element(numbers.begin(), middle), *middle);
}

}  // namespace kvbound::sim
