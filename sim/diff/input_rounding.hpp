// The rounding error of storing a trace's numbers in another type.
#pragma once

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// The nearest number of this type.
double rounded_to(double number, Dtype storage);

/// Bounds on the rounding error; both 0 if every number is representable in the type.
struct InputRounding {
  double relative = 0;  ///< half a unit in the last place, relative
  double floor = 0;     ///< absolute, for numbers below the type's normal range
};

/// Bounds for numbers that do not fit the type.
InputRounding storage_rounding(Dtype storage);

/// Bounds for one layer's keys, values, queries and W^O.
InputRounding input_rounding(const traces::Layer& layer, Dtype storage);

}  // namespace kvbound::sim
