// How an implementation adds up: what a kernel declares of its arithmetic, and what bounds on its rounding are made from
// (reference/bounds/error_bounds.hpp).
#pragma once

#include <cstdint>

namespace kvbound {

/// The IEEE format that numbers are multiplied and added in. Exponentials and logarithms are within 2 ulp of it.
enum class Precision { fp32, fp64 };

/// The arithmetic of one operation on a cache.
struct KernelArithmetic {
  Precision precision = Precision::fp32;
  /// The most additions that a term of a sum over tokens (of a norm: over the columns of W^O) passes through on its way
  /// into the sum; -1: not known, as many as there are terms, in any order.
  int64_t accumulation_depth = -1;
  /// Likewise in a product of a query and a key, or of a value and a column of W^O; -1: as many as head_dim.
  int64_t product_depth = -1;
  /// Such a product may be summed by tensor cores a few terms at a time, from zero, before these sums are added: their
  /// error as a share of the sum of their terms' absolute values. 0: it is not.
  double tensor_sums = 0;
  /// How often a running maximum rescales what was summed; -1: once for every 16 entries (online softmax).
  int64_t rescalings = -1;
};

/// The arithmetic of a session: what its records' errors come from.
struct SessionArithmetic {
  KernelArithmetic window_attention;
  KernelArithmetic projected_value_norms;
  KernelArithmetic attention;  ///< of a decode step
};

}  // namespace kvbound
