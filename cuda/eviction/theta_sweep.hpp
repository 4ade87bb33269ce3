// The selection with the smallest bound theta, on the device: one step of the sweep at a time.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>

#include "selection.hpp"

namespace kvbound::cuda {

/// The sweep's inputs, in device memory.
struct ThetaSweepInput {
  const float* weights = nullptr;  ///< A [query_heads, tokens]: window mean per query head, not pooled
  const float* norms = nullptr;    ///< N [query_heads, tokens]: projected value norms
  int64_t query_heads = 0;
  int64_t kv_heads = 0;  ///< divides query_heads
  int64_t tokens = 0;
  int64_t first_candidate = 0;  ///< candidates are successive positions
  int64_t candidates = 0;
};

/// The best selection so far of each KV head; device memory.
struct BestSelection {
  float* bounds = nullptr;       ///< [kv_heads]: its theta, summed over the group; negative before the first
  int64_t* positions = nullptr;  ///< [kv_heads, stride]
  int64_t stride = 0;
};

inline namespace KVBOUND_CUDA_BUILD {

/// The mean of every query head's norms over all tokens, [query_heads].
void mean_norms(const ThetaSweepInput& input, float* means, Stream stream);

/// The scores by which one step of the sweep selects candidates.
///
///     scores[g, j] = mean_h A^h_j (lambda + N^h_j / means[h]),   lambda = infinity: mean_h A^h_j
///
/// means      [query_heads], from mean_norms; where one is 0 the quotient counts as 0
/// lambda     >= 0
/// scores     [kv_heads, candidates]
/// precision  fp32; any rounding changes which selections are tried only
/// throws     ShapeMismatch; DeviceError
void sweep_scores(const ThetaSweepInput& input, const float* means, double lambda, float* scores,
                  Stream stream);

/// Bytes that `keep_better` needs.
int64_t keep_better_workspace(int64_t kv_heads, int64_t tokens);

/// Replaces each KV head's best selection by another one if that is the first or has a smaller bound.
///
///     theta = sum_h ( sum_{evicted} A N + (e / Sigma) sum_{kept} A N )
///     e = sum_{evicted} A,   Sigma = sum_{kept} A
///
/// Infinite if the kept entries hold no mass of some head:
/// reference::select_theta_sweep, proofs/critical_kv.md.
///
/// positions   [kv_heads, stride], device memory: the other selection's candidates,
///             ascending; stride as the best's
/// k           [kv_heads], device memory: their number
/// precision   fp32; error: total_bound_error in reference/bounds/perturbation_errors.hpp
/// throws      ShapeMismatch; DeviceError
void keep_better(const ThetaSweepInput& input, const int64_t* positions, const int64_t* k,
                 const BestSelection& best, Workspace workspace, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
