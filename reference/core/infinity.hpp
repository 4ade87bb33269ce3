// Infinity: the error bound where no finite bound is known, and the score of an entry that is never evicted.
#pragma once

#include <limits>

namespace kvbound {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace kvbound
