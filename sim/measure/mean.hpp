// The mean of figures of which some may be undefined.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace kvbound::sim {

/// The mean of the defined values; `undefined` counts the NaN (x/0), which are left out.
struct Mean {
  double sum = 0;
  int64_t count = 0;
  int64_t undefined = 0;

  void add(double value) {
    if (std::isnan(value)) {
      ++undefined;
      return;
    }
    sum += value;
    ++count;
  }
  std::optional<double> value() const {
    return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
  }
};

}  // namespace kvbound::sim
