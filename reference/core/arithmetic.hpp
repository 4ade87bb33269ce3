// The arithmetic that a kernel declares (precision, accumulation depth, rescalings), from which the bounds on
// its rounding errors are derived (reference/bounds/error_bounds.hpp).
#pragma once

#include <cstdint>

namespace kvbound {

/// The IEEE format of multiplications and additions. Exponentials and logarithms are accurate
/// to 2 ulp in this format.
enum class Precision { fp32, fp64 };

/// What the diagonal of a Gram matrix G = W W^T is increased by, as a share of itself, before it is factored
/// in fp64: then every pivot is positive, whatever rounds on the way (reference/numerics/README.md, "Norms by
/// the factor of a Gram matrix").
///
/// W  [inner, columns]
constexpr double gram_shift(int64_t inner, int64_t columns) {
  return static_cast<double>(inner * (columns + 2 * inner + 16)) * 0x1p-53;
}

/// The arithmetic of one operation on a cache.
struct KernelArithmetic {
  Precision precision = Precision::fp32;
  /// Accumulation depth of sums over tokens (of a norm: over the columns of W^O): the largest number of
  /// additions that a term passes through on its way into the sum; -1: unknown, so as many as the sum
  /// has terms, in any order.
  int64_t accumulation_depth = -1;
  /// Accumulation depth of a product of a query and a key, or of a value and a column of W^O; -1: head_dim.
  int64_t product_depth = -1;
  /// Accumulation depth of an inner product x W (y W)^T in the space of a score, through all sums
  /// on the way: over head_dim, over model_dim, over head_dim again; -1: 2 head_dim + model_dim, in
  /// the head's space head_dim.
  int64_t length_depth = -1;
  /// Tensor cores may sum such a product a few terms at a time, each partial sum
  /// starting from zero, before the partial sums are added: the error of a partial
  /// sum, as a share of the sum of its terms' absolute values. 0: no tensor cores.
  double tensor_sums = 0;
  /// So many partial sums, of 16 successive terms each, are formed one behind the other: all but the first
  /// begin with the one before instead of zero, and tensor_sums is a share of its absolute value, too. Only
  /// the last is added outside.
  int64_t tensor_chain = 1;
  /// The same of an output's sum over tokens, if tensor cores form parts of it: the error of a part, which
  /// its weights' rounding may add to, as a share of the sum of its terms' absolute values.
  double tensor_weighted_sums = 0;
  /// Absolute rounding of the weights of an output, as a share of the largest one, where tensor cores
  /// multiply them as numbers of 16 bits.
  double weights_floor = 0;
  /// The error of an inner product of a value and an output in the space of a score, and of a number of v L
  /// (gram_factor), if tensor cores form it, as a share of the sum of its terms' absolute values; additions
  /// outside are part of length_depth.
  double tensor_lengths = 0;
  /// Absolute rounding of an output's numbers in that space, as a share of the largest one, where tensor
  /// cores multiply them as numbers of 16 bits.
  double lengths_floor = 0;
  /// The length of a value v after W^O is that of v L, where L is the Cholesky factor of W^O's Gram matrix
  /// with its diagonal increased by gram_shift, formed in fp64 and rounded.
  bool gram_factor = false;
  /// How often a growing running maximum rescales the partial sums; -1: once for every 16
  /// entries (online softmax).
  int64_t rescalings = -1;
};

/// The arithmetic of a session's operations, from which the error bounds of its records are derived.
struct SessionArithmetic {
  KernelArithmetic window_attention;
  KernelArithmetic change_scores;          ///< scores that measure a change of outputs
  KernelArithmetic projected_value_norms;  ///< in L1
  KernelArithmetic projected_value_norms_l2;
  KernelArithmetic attention;     ///< of a decode step
  KernelArithmetic nearest_keys;  ///< cosines of the search for merge targets after a prompt
  KernelArithmetic nearest_key;   ///< likewise during decoding
};

}  // namespace kvbound
