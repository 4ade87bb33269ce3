// Infinity: the error of what cannot be bounded, the score of what is never evicted.
#pragma once

#include <limits>

namespace kvbound {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace kvbound
