// One query's attention with the dominant entry separated, and the
// differences of values and outputs, for the scores of obcache.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/numerics/squared_differences.hpp>

#include "value_space.hpp"

namespace kvbound::reference {

/// One query's attention. An entry that holds more than half of the attention is dominant. For scores that
/// would cancel, the dominant entry is left out, and the weights of the others are their softmax without it.
struct QueryAttention {
  double log_sum_exp = 0;
  int64_t dominant = -1;  ///< the entry that is left out; -1: none
  double logit = 0;       ///< the dominant entry's logit
  double lead = 0;        ///< the dominant entry's weight
  double rest = 1;        ///< total weight of the other entries, of which their weights are shares
  double others = 0;      ///< log-sum-exp of the other entries; -infinity if there are none
};

/// The attention weights of logits whose largest is given. v_j - o and 1 - A_j cancel where A_j is near 1;
/// leaving out the dominant entry avoids the cancellation.
///
/// logits   [entries that the query sees], natural log
/// weights  [entries that the query sees], written: A_j / rest, and 0 for the dominant entry
QueryAttention query_attention(VectorView logits, double largest, bool leaves_out_dominant,
                               std::span<double> weights);

/// The terms from which the scores of a block of entries for one query are computed.
struct ChangeTerms {
  VectorView logits;         ///< z [entries]
  VectorView weights;        ///< A [entries], shares of attention.rest
  VectorView squared_norms;  ///< [entries]: || v_j ||^2
  MatrixView values;         ///< [entries, head_dim]
  VectorView output;         ///< o [head_dim]
  double output_norm = 0;    ///< || o ||^2
  const QueryAttention& attention;
  const ValueSpace& space;
};

/// Recomputes the squared lengths that cancelled, from differences formed element by element.
///
///     changes[j] <- || scale_j (x_factor_j v_j - origin_factor_j o) ||^2  where changes[j] < 0
///
/// difference  returns the scale and factors of an entry
void measure_cancelled(const ChangeTerms& terms,
                       const std::function<ScaledDifference<double>(size_t entry)>& difference,
                       std::span<double> changes);

/// || scale (x_factor x - origin_factor o) ||^2
double squared_length(const ScaledDifference<double>& difference, VectorView x, VectorView o,
                      const ValueSpace& space);

/// 1 / (1 + e^-x)
double sigmoid(double x);

}  // namespace kvbound::reference
