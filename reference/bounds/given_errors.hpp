// Bounds on how far an implementation's scores may be from those that it was given:
// reference/bounds/error_bounds.md.
#pragma once

#include <kvbound/reference/core/view.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// Bounds for numbers that are rounded once, to the precision of the arithmetic, and that are
/// exact where it holds them.
///
/// given    finite, of double precision
/// returns  the shape of `given`
Matrix given_errors(MatrixView given, const Arithmetic& arithmetic);

}  // namespace kvbound::reference
