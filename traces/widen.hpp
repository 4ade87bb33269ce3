// Stored numbers as doubles, many at a time.
#pragma once

#include <span>

#include <kvbound/reference/core/dtype.hpp>

namespace kvbound::traces {

/// Widens numbers, which is exact, and says whether all of them are finite.
///
/// dtype  F64, F32, F16 or BF16
/// bytes  [out.size() * size_of(dtype)], at any address
bool widen(Dtype dtype, std::span<const char> bytes, std::span<double> out);

}  // namespace kvbound::traces
