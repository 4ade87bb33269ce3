// Rounding errors of sums over many tokens, of whose order something is known: error_bounds.md, "Long sums".
//
// Not a public header: include error_bounds.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "error_bounds.hpp"

namespace kvbound::reference::rounding {

/// Products that an instruction of tensor cores adds to a running sum.
inline constexpr double kBlock = 16;

/// Whether these bounds are used for a sum over so many tokens: a tile is declared, or nothing is, and the
/// tokens are more than 8,192, of which a sum in any order at all would have hardly any bound.
bool is_long(const Arithmetic& arithmetic, int64_t tokens);

/// So many additions and less a term of a sum over tokens passes through in single precision, where
/// one is formed in any order.
double single_depth(const Arithmetic& arithmetic, int64_t tokens);

/// The most changes of a running maximum over some of these logits, forwards or backwards.
///
///     all from some place on: the longest chain in which each is followed by the next larger one
///     any subset of them:     the longest strictly rising, or falling, subsequence
double most_rescalings_in_order(VectorView logits);
double most_rescalings(VectorView logits);

/// The most parts of the cache with separate outputs: as declared, or the most that kernels make.
int64_t most_parts(const Arithmetic& arithmetic, int64_t tokens);

/// An upper bound of the largest sum of |sums of runs|, over all ways to divide each column into at most
/// `runs` runs of successive numbers.
///
/// terms    [tokens, columns]
/// returns  [columns]
std::vector<double> largest_runs(MatrixView terms, int64_t runs);

/// Bounds on what the additions of sums over one query's tokens take from them.
class LongSums {
 public:
  /// rescalings  of the partial sums of one part
  LongSums(int64_t tokens, double rescalings, const Arithmetic& arithmetic);

  /// The rounding error of the sum of the weights, relative to the sum.
  double of_weights() const { return of_weights_; }
  /// The rounding errors of the sums of weighted values, [head_dim].
  ///
  /// ranges  largest difference between two sums of the first few terms, in the order of positions
  /// sizes   sums of the terms' absolute values
  std::vector<double> of_values(VectorView ranges, VectorView sizes) const;

 private:
  double any_order_ = 0;  // as a share of the sum of absolute values
  double chain_ = 0;      // as a share of the range of running sums
  double blocks_ = 0;     // as a share of the sum of absolute values, beside a chain
  double of_weights_ = 0;
};

}  // namespace kvbound::reference::rounding
