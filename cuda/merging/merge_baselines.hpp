// The weights of the merging methods with which KeepKV is compared, on the device: they depend on keys alone.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

#include "weighted_mean.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Bytes that `gaussian_weights` needs.
///
/// stride  of the clusters
int64_t gaussian_weights_workspace(int64_t kv_heads, int64_t stride);

/// D2O's weights of every cluster's entries: reference::similarity_weights.
///
///     w_j = exp(cos(k_j, k_c)) / sum_i exp(cos(k_i, k_c)),   c the kept entry, cos(k_c, k_c) = 1
///
/// keys       [kv_heads, rows, head_dim], head_dim 1..256
/// weights    one row; only clusters with members are weighted
/// precision  fp32; errors: similarity_mean_errors in reference/bounds/merge_cluster_errors.hpp
/// throws     ShapeMismatch; DeviceError
/// source     D2O (arXiv:2406.13035)
template <Storage T>
void similarity_weights(DeviceTensor<const T> keys, const MergedEntries& merged,
                        const ClusterWeights& weights, Stream stream);

/// KVMerger's weights of every cluster's entries: reference::gaussian_weights.
///
///     w_j = exp(-||k_j - k_c||^2 / (2 sigma^2)) / sum,   sigma^2 = mean over the members of ||k_j - k_c||^2
///
/// keys, weights, throws: as above; all weights are equal for sigma = 0, and no square over- or underflows
/// precision  fp32; errors: gaussian_mean_errors in reference/bounds/merge_cluster_errors.hpp
/// source     KVMerger (arXiv:2407.08454)
template <Storage T>
void gaussian_weights(DeviceTensor<const T> keys, const MergedEntries& merged, const ClusterWeights& weights,
                      Workspace workspace, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
