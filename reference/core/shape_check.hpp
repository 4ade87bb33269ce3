// Argument checks whose messages hold the offending values.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "error.hpp"
#include "view.hpp"

namespace kvbound {

/// Throws ShapeMismatch, as in "columns of values is 64 but rows of output_projection is 128".
inline void require_equal(std::string_view one, int64_t one_is, std::string_view other, int64_t other_is) {
  if (one_is == other_is) return;
  throw ShapeMismatch(std::string(one) + " is " + std::to_string(one_is) + " but " + std::string(other) +
                      " is " + std::to_string(other_is));
}

/// Throws ShapeMismatch, as in "window is 65, not in 1..64".
inline void require_within(std::string_view what, int64_t value, int64_t least, int64_t most) {
  if (least <= value && value <= most) return;
  throw ShapeMismatch(std::string(what) + " is " + std::to_string(value) + ", not in " +
                      std::to_string(least) + ".." + std::to_string(most));
}

/// Throws NonFinite with the index of the first NaN or infinity.
inline void require_finite(std::string_view what, VectorView numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!std::isfinite(numbers[i])) {
      throw NonFinite(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(numbers[i]));
    }
  }
}

}  // namespace kvbound
