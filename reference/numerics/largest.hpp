// The largest of many numbers.
#pragma once

#include <limits>
#include <span>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The largest of some numbers, and whether all of them are finite.
struct Largest {
  double value = -std::numeric_limits<double>::infinity();
  double poison = 0;  ///< 0 if all numbers are finite, else NaN

  bool all_finite() const { return poison == 0; }
};

/// numbers  at least one; if one of them is NaN, the value is unspecified
Largest largest(VectorView numbers);

/// The largest number.   numbers: none of them NaN; returns -infinity for no numbers
double largest_of(VectorView numbers);

/// Whether no number is NaN or infinite.
bool all_finite(std::span<const float> numbers);

}  // namespace kvbound::reference
