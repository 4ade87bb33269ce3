// One query's attention as the scores of obcache.hpp need it, and differences of a value and an output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/numerics/squared_differences.hpp>

#include "value_space.hpp"

namespace kvbound::reference {

/// One query's attention. An entry that holds more than half of it is dominant: where that matters it is left out, and the
/// weights are those of the others among themselves.
struct QueryAttention {
  double log_sum_exp = 0;
  int64_t dominant = -1;  ///< the entry that is left out; -1: none
  double logit = 0;       ///< its logit
  double lead = 0;        ///< its weight
  double rest = 1;        ///< what all others hold: weights are shares of it
  double others = 0;      ///< the others' log-sum-exp; minus infinity: there are none
};

/// Attention weights of the logits, whose largest is known. v_j - o and 1 - A_j cancel where A_j is near 1, and nothing does
/// with the dominant entry left out.
///
/// logits   [entries that the query sees], natural log
/// weights  likewise, written: A_j / rest, and 0 for the dominant entry
QueryAttention query_attention(VectorView logits, double largest, bool leaves_out_dominant,
                               std::span<double> weights);

/// What the scores of some entries for one query follow from.
struct ChangeTerms {
  VectorView logits;         ///< z [entries]
  VectorView weights;        ///< A [entries], shares of attention.rest
  VectorView squared_norms;  ///< [entries], of the values
  MatrixView values;         ///< [entries, head_dim]
  VectorView output;         ///< o [head_dim]
  double output_norm = 0;    ///< || o ||^2
  const QueryAttention& attention;
  const ValueSpace& space;
};

/// Squared lengths of differences of one value and one output, element by element.
///
///     changes[j] <- || scale_j (x_factor_j v_j - origin_factor_j o) ||^2  where changes[j] < 0
///
/// difference  of entry j
void measure_cancelled(const ChangeTerms& terms,
                       const std::function<ScaledDifference<double>(size_t entry)>& difference,
                       std::span<double> changes);

/// || scale (x_factor x - origin_factor o) ||^2
double squared_length(const ScaledDifference<double>& difference, VectorView x, VectorView o,
                      const ValueSpace& space);

/// 1 / (1 + e^-x)
double sigmoid(double x);

}  // namespace kvbound::reference
