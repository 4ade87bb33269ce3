// What storing a trace's numbers in another type changes.
#pragma once

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// Bounds on it; both 0 if all numbers are of that type anyway.
struct InputRounding {
  double relative = 0;  ///< half a unit in the last place, relative
  double floor = 0;     ///< absolute, for numbers below the type's normal range
};

/// Of one layer's keys, values, queries and W^O.
InputRounding input_rounding(const traces::Layer& layer, Dtype storage);

}  // namespace kvbound::sim
