// Division of a budget among the KV heads of a layer (AdaKV)
// and among layers (PyramidKV). Totals are preserved exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// AdaKV's budgets of one layer's KV heads.
///
///     f_h = number of head h's candidates among the sum_h k_h largest scores of all heads together
///     k'_h = floor((1 - safeguard) f_h + safeguard k_h)
///
/// The rest of the total goes one by one to the largest fractional parts.
///
/// scores      [kv_heads, candidates]; ties: smaller head, then smaller index
/// candidates  [kv_heads]: k_h, the number of candidates that each head would keep without AdaKV
/// returns     [kv_heads]: k'_h with the same sum, each at most the candidates. Exact
///             arithmetic; ties: smaller head
/// throws      ShapeMismatch, also for a k_h outside 0..candidates; NonFinite if a score is NaN
/// source      AdaKV (arXiv:2407.11550)
std::vector<int64_t> adakv_budgets(const AdaKv& options, MatrixView scores,
                                   std::span<const int64_t> candidates);

/// AdaKV's second step alone: the budgets k'_h, given the counts f_h of large scores.
///
/// found       [kv_heads]: f_h, with the same sum as k_h
/// candidates  [kv_heads]: k_h
/// throws      ShapeMismatch
std::vector<int64_t> adakv_shares(const AdaKv& options, std::span<const int64_t> found,
                                  std::span<const int64_t> candidates);

/// PyramidKV's budgets of all layers.
///
///     d = min(b - b / beta, b - least, n - b)
///     linear: b_l = b + d (1 - 2 l / (L - 1));   cosine: b_l = b + d cos(pi l / (L - 1))
///
/// The b_l are rounded down, and the rest of the total L b goes one by one to the largest
/// fractional parts (ties: smaller layer). If neither the always-kept entries nor the prompt's
/// length limits d, budgets fall from 2 b - b / beta to b / beta. `linear` is computed in
/// exact arithmetic; fractional parts of `cosine` count as equal if they agree to 2^-30.
///
/// layers   L, 1..2^20; a single layer gets b
/// budget   b, the mean number of entries per KV head
/// least    1..b: number of entries that the host always keeps, at least one
/// tokens   n, b..2^42
/// returns  [layers], with sum L b, each in least..n, non-increasing
/// throws   ShapeMismatch; InvalidPolicy for beta < 1
/// source   PyramidKV (arXiv:2406.02069); cosine: KeepKV (arXiv:2504.09936)
std::vector<int64_t> pyramid_budgets(const Pyramid& options, int64_t layers, int64_t budget, int64_t least,
                                     int64_t tokens);

}  // namespace kvbound::reference
