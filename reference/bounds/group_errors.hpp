// Error bounds for scores reduced over the query heads that share a KV head.
#pragma once

#include <cstdint>

#include <kvbound/reference/core/score_rules.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// Bounds for reduce_group: group_mean_errors (error_bounds.hpp) or group_sum_errors (obcache_errors.hpp).
///
/// scores, errors  [query_heads, entries]
/// returns         [query_heads / group_size, entries]
Matrix group_errors(MatrixView scores, MatrixView errors, int64_t group_size, GroupReduction reduction,
                    const Arithmetic& arithmetic);

}  // namespace kvbound::reference
