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
/// precision          fp32, in an order that depends on the shape alone; 16-bit types by tensor cores:
///                    value_space_arithmetic
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
/// precision  fp32; 16-bit types by tensor cores, which take G's numbers on and left of the diagonal; error: as part of
///            change_score_errors in reference/bounds/obcache_errors.hpp, with value_space_arithmetic
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void squared_norms(DeviceTensor<const T> values, const float* gram, int64_t query_heads, float* norms,
                   Stream stream);

/// The accumulation depth of gram_matrices, over model_dim.
template <Storage T>
int64_t gram_depth(int64_t model_dim);

/// The arithmetic of a squared length after W^O by both: length_depth, tensor_gram and tensor_lengths.
template <Storage T>
KernelArithmetic value_space_arithmetic(int64_t head_dim, int64_t model_dim);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
