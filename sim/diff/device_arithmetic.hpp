// The arithmetic that a device's session computes in, for the bounds that its records are held to.
#pragma once

#include <kvbound/traces/trace.hpp>

#include "tested_implementation.hpp"

namespace kvbound::sim {

/// Single precision, with the chains that each kernel declares.
///
/// storage  of the cache on the device
/// entries  the most entries of a KV head, decode steps included
OperationArithmetic device_arithmetic(const traces::TraceInfo& trace, Dtype storage, int64_t entries);

}  // namespace kvbound::sim
