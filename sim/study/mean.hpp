// The mean of a study's numbers.
#pragma once

#include <vector>

namespace kvbound::sim {

/// NaN for no number.
inline double mean(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number;
  return sum / static_cast<double>(numbers.size());
}

}  // namespace kvbound::sim
