// The change of an output when a set of entries is removed from the cache, in closed form.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The change of one query's output when some entries are removed from its cache.
///
///     o' - o = (1 / (1 - A_E)) sum_{j in E} A_j (o - v_j) = A_E (o_rest - o_E)
///
/// with A_E the mass of the removed entries, o_E their attention-weighted mean, and o_rest = o'
/// that of the other entries. The last form is evaluated, from the softmaxes of the two parts: it
/// does not cancel as A_E -> 1.
///
/// logits    [entries], natural log
/// values    [entries, head_dim]
/// removed   ascending indices; not all entries
/// returns   [head_dim]; zeros if no entry is removed
/// throws    ShapeMismatch; NonFinite if a logit is NaN or infinite, or no entry remains
/// source    ours; one entry: KeepKV (arXiv:2504.09936), eq. 4
/// proof     proofs/obcache.md#obc-set
std::vector<double> removal_change(VectorView logits, MatrixView values, std::span<const int64_t> removed);

}  // namespace kvbound::reference
