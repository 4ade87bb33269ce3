// The largest of many numbers.
#pragma once

#include <limits>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The largest of some numbers, and whether it means anything.
struct Largest {
  double value = -std::numeric_limits<double>::infinity();
  double poison = 0;  ///< 0 if all numbers are finite, else NaN

  bool all_finite() const { return poison == 0; }
};

/// numbers  at least one; with a NaN among them the value says nothing
Largest largest(VectorView numbers);

/// numbers  none of them NaN; returns -infinity for no numbers
double largest_of(VectorView numbers);

}  // namespace kvbound::reference
