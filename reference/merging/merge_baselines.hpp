// The merging methods with which KeepKV is compared: weighted means of keys and values, without votes.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// D2O's weights of a cluster.
///
///     w_j = exp(cos(k_j, k_c)) / sum_i exp(cos(k_i, k_c)),   c the first, cos(k_c, k_c) = 1
///
/// keys     [members, head_dim], the target first; the cosine with a zero key is 0
/// returns  [members], sum 1
/// throws   ShapeMismatch for no members; NonFinite if a key is NaN or infinite
/// source   D2O (arXiv:2406.13035)
std::vector<double> similarity_weights(MatrixView keys);

/// KVMerger's weights of a cluster.
///
///     w_j = exp(-||k_j - k_c||^2 / (2 sigma^2)) / sum,   sigma^2 = mean over the others of ||k_j - k_c||^2
///
/// keys     [members, head_dim], the target first
/// returns  [members], sum 1; all equal for sigma = 0. Keys are scaled so that no square, nor
///          sigma^2, over- or underflows
/// throws   ShapeMismatch for no members; NonFinite if a key is NaN or infinite
/// source   KVMerger (arXiv:2407.08454)
std::vector<double> gaussian_weights(MatrixView keys);

}  // namespace kvbound::reference
