// Lengths and directions of vectors whose squares may overflow or vanish, and the cosines between them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// ||x||_2, also where the squares of the numbers overflow or underflow.
///
/// returns  >= 0; +infinity if the length exceeds the largest double
/// throws   NonFinite if a number is NaN or infinite
double length(VectorView x);

/// x / ||x||, zero for a zero x.
///
/// direction  [size of x], written
/// throws     NonFinite if a number is NaN or infinite
void fill_direction(VectorView x, std::span<double> direction);

/// The directions of all rows.   returns [rows, cols]
Matrix row_directions(MatrixView rows);

/// a . b / (||a|| ||b||), given both lengths.   returns -1..1; 0 if either vector is zero
double cosine(VectorView a, double length, VectorView b, double other_length);

/// Visits the cosines of every row with all others, a block of others at a time.
///
/// Equal rows have equal cosines to the last bit, but sums are formed in another order than in cosine(), and
/// rounding may carry a cosine beyond -1 or 1.
///
/// rows, others  [.., cols], finite
/// visit         called with (row, first, cosines with others first, first + 1, ...); it may
///               overwrite the cosines. The blocks of one row come in ascending order of `first`,
///               different rows on different threads
void visit_cosines(MatrixView rows, MatrixView others,
                   const std::function<void(int64_t row, int64_t first, std::span<double> cosines)>& visit);

}  // namespace kvbound::reference
