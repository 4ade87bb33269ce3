// The space in which changes of a query head's output are measured: reference::ValueSpace on the device.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/arithmetic.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Bytes of workspace for gram_matrices.
int64_t gram_matrices_workspace(int64_t query_heads, int64_t head_dim);

/// The Gram matrix of every query head's rows of W^O, and its Cholesky factor: x G y^T is the inner product
/// of x W and y W, and the length of x L is that of x W.
///
///     gram[h] = W_h W_h^T                                      G
///     factor[h] factor[h]^T = G + gram_shift(head_dim, model_dim) diag G,   lower triangular   L
///
/// output_projection  [query_heads, head_dim, model_dim], head_dim 1..256
/// gram, factor       [query_heads, head_dim, head_dim], device memory, without gaps, begin on 8 bytes
/// precision          sums and factors in fp64, in an order that depends on the shape alone; numbers rounded
///                    to fp32; what L is off by: reference/numerics/gram_factor.hpp
/// throws             ShapeMismatch; DeviceError
template <Storage T>
void gram_matrices(DeviceTensor<const T> output_projection, float* gram, float* factor, Workspace workspace,
                   Stream stream);

/// The squared lengths of values in the space of every query head: reference::squared_norms.
///
///     norms[h, j] = || values[g, j, :] L_h ||_2^2
///
/// values     [kv_heads, tokens, head_dim], head_dim 1..256; kv_heads divides query_heads
/// factor     [query_heads, head_dim, head_dim], from gram_matrices; null: the head's space, L = 1
/// norms      [query_heads, tokens], device memory, without gaps
/// precision  fp32; 16-bit types by tensor cores, which take L's tiles on and left of the diagonal; error: as
///            part of change_score_errors in reference/bounds/obcache_errors.hpp, with
///            value_space_arithmetic
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void squared_norms(DeviceTensor<const T> values, const float* factor, int64_t query_heads, float* norms,
                   Stream stream);

/// reference::projected_value_norms in L2 for every query head: the roots of squared_norms after W^O.
///
///     norms[h, j] = || values[g, j, :] L_h ||_2
///
/// factor     [query_heads, head_dim, head_dim], from gram_matrices
/// precision  fp32, squares too: a norm above 1.8e19 may be infinite, and numbers of v L below 1e-19 count as
///            0 in it. Error: reference/bounds/error_bounds.hpp with norms_l2_arithmetic()
/// all other arguments as of squared_norms
/// equal values have equal norms to the last bit, wherever they stand, and however many tokens there are
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void projected_value_norms_l2(DeviceTensor<const T> values, const float* factor, int64_t query_heads,
                              float* norms, Stream stream);

/// The arithmetic of `projected_value_norms_l2`: of v L, and of the sum of its squares.
template <Storage T>
KernelArithmetic norms_l2_arithmetic(int64_t head_dim);

/// What a number of gram_matrices is off by, as additions count: its rounding, and less than another
/// one through sums in fp64.
inline constexpr int64_t kGramDepth = 2;

/// The arithmetic of a squared length after W^O: length_depth and tensor_lengths.
template <Storage T>
KernelArithmetic value_space_arithmetic(int64_t head_dim);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
