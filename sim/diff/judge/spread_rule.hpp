// Decides whether CaM may spread a value, may drop it, or, where rounding decides, either.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// Mean attention over a group of query heads, with error bounds.
struct MeanAttention {
  std::vector<double> weights;  ///< [entries]
  std::vector<double> errors;   ///< [entries]
};

/// The mean attention of a group's queries, with the errors of a tested implementation's arithmetic.
///
/// queries     [group_size, head_dim]
/// keys        [entries, head_dim]
/// key_errors  [entries, head_dim], without storage; no rows: 0
MeanAttention mean_attention(MatrixView queries, MatrixView keys, double scale, MatrixView key_errors,
                             const reference::Arithmetic& arithmetic);

/// The outcomes of CaM's draw that are possible with attention weights within their errors.
struct SpreadAmbiguity {
  bool may = false;     ///< the value may be spread
  bool may_not = true;  ///< the value may be dropped
};

/// entry      index of the evicted entry in `attention`
/// following  indices of the entries that its value would be spread over
/// position   of the evicted entry
SpreadAmbiguity spread_ambiguity(const Cam& cam, const MeanAttention& attention, int64_t entry,
                                 std::span<const int64_t> following, int64_t kv_head, int64_t position,
                                 const reference::Arithmetic& arithmetic);

}  // namespace kvbound::sim
