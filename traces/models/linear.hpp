// The operations of a decoder layer but for attention, on the rows of a matrix, in single precision.
#pragma once

#include <initializer_list>

#include <kvbound/reference/core/view.hpp>

#include "weight.hpp"

namespace kvbound::traces {

/// A weight W, and where its products go.
struct WeightProducts {
  const Weight& weight;
  MutableSingleMatrixView y;  ///< [rows of x, W's rows]
};

/// Every row of y is the product of the weight with that row of x, for all weights that x is multiplied by.
/// Blocks of the weights' rows are read and decoded in parallel, so that never more than a few blocks are in
/// memory.
///
///     y[i,:] = W x[i,:]
///
/// x      [rows, columns of every W]
/// piece  rows of x that are multiplied at a time, >= 1: a product's last bits may depend on a row's place
///        among the rows of its piece, but on nothing outside it
void linear(std::initializer_list<WeightProducts> products, SingleMatrixView x, int64_t piece);

/// Adds a bias [1, columns] to every row.
void add_bias(const Weight& bias, MutableSingleMatrixView x);

/// Root-mean-square norm of every row, with the mean of squares in double precision.
///
///     y[i,c] = x[i,c] / sqrt(mean_c x[i,c]^2 + epsilon) w[c]
///
/// weight  [1, columns]
/// y       may be x
void rms_norm(const Weight& weight, double epsilon, SingleMatrixView x, MutableSingleMatrixView y);

/// gate[i,c] <- gate[i,c] / (1 + exp(-gate[i,c])) up[i,c]
void swish_gate(MutableSingleMatrixView gate, SingleMatrixView up);

/// x <- x + y
void add(MutableSingleMatrixView x, SingleMatrixView y);

}  // namespace kvbound::traces
