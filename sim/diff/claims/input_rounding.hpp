// The rounding error of storing a trace's numbers in another type.
#pragma once

#include <initializer_list>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/traces/trace.hpp>

#include "tested_implementation.hpp"

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

/// Bounds for these numbers; for one layer's keys, values, queries and W^O.
InputRounding input_rounding(std::initializer_list<VectorView> inputs, Dtype storage);
InputRounding input_rounding(const traces::Layer& layer, Dtype storage);

/// The arithmetic, with that rounding of inputs before the one that it has itself.
reference::Arithmetic with_input_rounding(reference::Arithmetic arithmetic, const InputRounding& rounding);

/// The implementation, with the rounding of a layer's inputs to its storage type added to the
/// arithmetic of every operation.
TestedImplementation with_input_rounding(TestedImplementation implementation, const traces::Layer& layer);

}  // namespace kvbound::sim
