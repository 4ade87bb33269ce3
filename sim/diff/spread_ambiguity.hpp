// Whether CaM spreads a value, where rounding leaves more than one answer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// One attention over a group of query heads, and how far a tested implementation's may be off.
struct MeanAttention {
  std::vector<double> weights;  ///< [entries]
  std::vector<double> errors;   ///< [entries]
};

/// queries     [group_size, head_dim]
/// keys        [entries, head_dim]
/// key_errors  [entries, head_dim], storage apart; no rows: none
MeanAttention mean_attention(MatrixView queries, MatrixView keys, double scale, MatrixView key_errors,
                             const reference::Arithmetic& arithmetic);

/// What a tested implementation whose attention is within its errors may draw.
struct SpreadAmbiguity {
  bool may = false;
  bool may_not = true;
};

/// entry      index of the one that leaves
/// following  indices of those that it may be spread over
/// position   of the one that leaves
SpreadAmbiguity spread_ambiguity(const Cam& cam, const MeanAttention& attention, int64_t entry,
                                 std::span<const int64_t> following, int64_t kv_head, int64_t position,
                                 const reference::Arithmetic& arithmetic);

}  // namespace kvbound::sim
