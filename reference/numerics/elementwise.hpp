// Element-wise loops over vectors: every result depends only on the operands of the same index.
#pragma once

#include <span>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// numbers[i] <- numbers[i] / divisor
void divide(std::span<double> numbers, double divisor);

/// sums[i] <- sums[i] + terms[i]
void add(VectorView terms, std::span<double> sums);

/// sums[i] <- sums[i] + numerators[i] / divisor
void add_quotients(VectorView numerators, double divisor, std::span<double> sums);

/// numbers[i, j] <- 0
void set_zero(MutableMatrixView numbers);

/// The matrix with every element divided by `divisor`.
Matrix quotient(MatrixView matrix, double divisor);

}  // namespace kvbound::reference
