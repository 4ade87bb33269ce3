// HeadKV: budgets of all layers' KV heads, by importances of heads that come from outside.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <boost/multiprecision/cpp_int.hpp>

#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/core/head_scores.hpp>

namespace kvbound::reference {

/// An importance in a unit that all heads share: a fraction that was printed as a decimal one stays exact.
using HeadImportance = boost::multiprecision::cpp_int;

/// The importances of KV heads: sums over the query heads that share them.
///
///     I_g = sum_h s_h ^ temperature
///
/// scores    must have these layers, each with a multiple of kv_heads query heads
/// layers    ascending
/// returns   [layers kv_heads], layer by layer; exact for a temperature of 1, else of powers in doubles
/// throws    InvalidPolicy for a power that is infinite
std::vector<HeadImportance> head_importances(const HeadScores& scores, std::span<const int64_t> layers,
                                             int64_t kv_heads, double temperature);

/// What HeadKV shares out.
struct HeadKvBudget {
  int64_t budget = 0;       ///< b, the mean number of entries per KV head
  int64_t always_kept = 0;  ///< entries that every head keeps, 0..b
  int64_t tokens = 0;       ///< n, at least b: the most entries of a head
  Decimal beta{12, 1};      ///< 1 / beta of the candidates are shared by importance, at least 1
};

/// HeadKV's budgets.
///
///     k = b - always_kept,   s = floor(k / beta),   pool = heads s
///     k_h = k - s + pool I_h / sum_j I_j,   b_h = always_kept + k_h
///
/// Shares are rounded down, and the rest of the pool goes one by one to the largest fractional parts (ties:
/// smaller head). A head whose share would take it above n gets n; what it leaves is shared by the same rule
/// among the others. Where all importances are 0, shares are equal. Exact arithmetic.
///
/// importances  [heads]: I_h >= 0, layer by layer
/// returns      [heads]: b_h, with sum heads b
/// throws       ShapeMismatch unless 0 <= always_kept <= b <= n, every I_h >= 0 and heads b <= 2^62;
///              InvalidPolicy for beta < 1
/// source       HeadKV (arXiv:2410.19258), whose code rounds every budget by itself, so that totals drift
std::vector<int64_t> head_kv_budgets(const HeadKvBudget& budget, std::span<const HeadImportance> importances);

}  // namespace kvbound::reference
