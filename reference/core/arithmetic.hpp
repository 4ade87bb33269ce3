// The arithmetic that a kernel declares (precision, accumulation depth, rescalings), from which the bounds on
// its rounding errors are derived (reference/bounds/error_bounds.hpp).
#pragma once

#include <cstdint>

namespace kvbound {

/// The IEEE format of multiplications and additions. Exponentials and logarithms are accurate
/// to 2 ulp in this format.
enum class Precision { fp32, fp64 };

/// Of smaller |v|^2 and tr G no root is taken for an L2 norm (gram_share).
inline constexpr float kLeastRootLength = 0x1p-32f;
inline constexpr float kLeastRootTrace = 0x1p-16f;

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
  /// The error of an inner product of a value and an output in the space of a score, and after W^O of a value
  /// with itself, if tensor cores form it, as a share of the sum of its terms' absolute values; additions
  /// outside are part of length_depth.
  double tensor_lengths = 0;
  /// Absolute rounding of an output's numbers in that space, as a share of the largest one, where tensor
  /// cores multiply them as numbers of 16 bits.
  double lengths_floor = 0;
  /// An L2 norm of a projected value is the root of v G v, by length_depth and tensor_lengths, where that is
  /// finite and at least this share of |v|^2 tr G, |v|^2 at least kLeastRootLength and tr G at least
  /// kLeastRootTrace; elsewhere it is the norm of the projected value. 0: of the projected value everywhere;
  /// otherwise at least 2^-11. G, W^O's Gram matrix, is summed in fp64.
  double gram_share = 0;
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
