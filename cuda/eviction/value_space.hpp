// The space in which changes of a query head's output are measured: reference::ValueSpace on the device.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/arithmetic.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The Gram matrix of every query head's rows of W^O: x G y^T is the inner product of x W and y W.
///
///     gram[h] = W_h W_h^T
///
/// output_projection  [query_heads, head_dim, model_dim], head_dim 1..256
/// gram               [query_heads, head_dim, head_dim], device memory, without gaps, begins on 8 bytes
/// precision          sums in fp64, in an order that depends on the shape alone; numbers rounded to fp32
/// throws             ShapeMismatch; DeviceError
template <Storage T>
void gram_matrices(DeviceTensor<const T> output_projection, float* gram, Stream stream);

/// The squared lengths of values in the space of every query head: reference::squared_norms.
///
///     norms[h, j] = values[g, j, :] G_h values[g, j, :]^T, >= 0
///
/// values     [kv_heads, tokens, head_dim], head_dim 1..256; kv_heads divides query_heads
/// gram       [query_heads, head_dim, head_dim], symmetric, begins on 8 bytes; null: the head's space, G = 1
/// norms      [query_heads, tokens], device memory, without gaps
/// precision  fp32; 16-bit types by tensor cores, which take G's numbers on and left of the
///            diagonal; error: as part of change_score_errors in
///            reference/bounds/obcache_errors.hpp, with value_space_arithmetic
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void squared_norms(DeviceTensor<const T> values, const float* gram, int64_t query_heads, float* norms,
                   Stream stream);

/// Turns the squared lengths of values after W^O into norms: the second step of projected_value_norms_l2.
///
/// norms  [query_heads, tokens], from squared_norms
/// all other arguments as of projected_value_norms_l2
/// throws  ShapeMismatch; DeviceError
template <Storage T>
void norms_of_squares(DeviceTensor<const T> values, DeviceTensor<const T> output_projection,
                      const float* gram, float* norms, Stream stream);

/// reference::projected_value_norms in L2 for every query head.
///
///     norms[h, j] = (v G_h v^T)^1/2   where v G_h v^T >= |v|^2 tr G_h / (8 head_dim), |v|^2 >= 2^-32 and
///                                     tr G_h >= 2^-16, with v = values[g, j, :]
///                   || v W_h ||_2     elsewhere
///
/// values             [kv_heads, tokens, head_dim], head_dim 1..256
/// output_projection  [query_heads, head_dim, model_dim]: block h is query head h's rows of W^O
/// gram               [query_heads, head_dim, head_dim], from gram_matrices
/// norms              [query_heads, tokens], device memory, without gaps
/// precision          fp32, squares too: a norm above 1.8e19 may be infinite, and projected
///                    values below 1e-19 count as 0 in it. Error:
///                    reference/bounds/error_bounds.hpp with norms_l2_arithmetic()
/// equal values have equal norms to the last bit, wherever they stand, and however many tokens there are
/// throws             ShapeMismatch; DeviceError
template <Storage T>
void projected_value_norms_l2(DeviceTensor<const T> values, DeviceTensor<const T> output_projection,
                              const float* gram, float* norms, Stream stream);

/// The arithmetic of `projected_value_norms_l2`: that of the squared lengths, and accumulation_depth and
/// product_depth of values that are projected.
template <Storage T>
KernelArithmetic norms_l2_arithmetic(int64_t head_dim, int64_t model_dim);

/// What a number of gram_matrices is off by, as additions count: its rounding, and less than another
/// one through sums in fp64.
inline constexpr int64_t kGramDepth = 2;

/// The arithmetic of a squared length after W^O by both: length_depth and tensor_lengths.
template <Storage T>
KernelArithmetic value_space_arithmetic(int64_t head_dim);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
