// The selection with the smallest bound theta among those that trade kept mass against kept norm mass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The input of one KV head's sweep.
struct ThetaSweepInput {
  MatrixView attention_weights;          ///< A [group_size, tokens]: window mean per query head, not pooled
  MatrixView projected_value_norms;      ///< N [group_size, tokens]
  MatrixView head_scores;                ///< a [group_size, candidates]: not pooled
  std::span<const int64_t> candidates;   ///< [candidates] ascending positions
  std::span<const int64_t> always_kept;  ///< ascending positions
  std::vector<std::vector<int64_t>> rivals;  ///< selections (k indices of candidates each) to compare with
};

/// The scores of the sweep's mixtures, by each of which it selects k candidates.
///
///     score_j = mean_h a^h_j (lambda + N^h_j / mean_j N^h_j);          lambda = infinity: mean_h a^h_j
///
/// returns  [lambdas, candidates], in the order of theta_sweep_lambdas()
Matrix theta_sweep_scores(const ThetaSweepInput& input);

/// The best of the sweep's selections and their rivals.
///
///     for lambda in 0, 25 geometric points from 1e-3 to 1e3, infinity:
///         top k by theta_sweep_scores
///     then the rivals; the first selection with the smallest sum_h theta_h wins
///
/// mean_j runs over all tokens; for a head whose norms are all 0, N^h_j / mean_j N^h_j counts
/// as 0. theta is taken in the norm of projected_value_norms. For a fixed budget theta
/// depends only on (Sigma, S); the sweep walks the hull of the reachable pairs. The best
/// selection can lie off the hull, so the guarantee is: theta is at most that of every rival.
///
/// k        0..candidates
/// returns  [k] ascending indices of candidates
/// throws   ShapeMismatch, NonFinite
/// source   ours, built on CriticalKV (arXiv:2502.03805), Theorem 3.3
/// proof    proofs/critical_kv.md#ckv-theta-sweep
std::vector<int64_t> select_theta_sweep(const ThetaSweepInput& input, int64_t k);

}  // namespace kvbound::reference
