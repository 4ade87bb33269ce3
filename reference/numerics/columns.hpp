// Copies of chosen columns or rows of a matrix.
#pragma once

#include <cstdint>
#include <span>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The given columns, in the given order.   returns [rows, columns]; empty for a matrix without columns
Matrix columns_of(MatrixView matrix, std::span<const int64_t> columns);

/// The given rows, in the given order.   returns [rows, cols]
Matrix rows_of(MatrixView matrix, std::span<const int64_t> rows);

}  // namespace kvbound::reference
