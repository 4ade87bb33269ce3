// How far single entries move one query's output: the arithmetic behind the scores of obcache.hpp, for one query at a time.
#pragma once

#include <cstdint>
#include <span>

#include <kvbound/reference/core/view.hpp>

#include "obcache.hpp"
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

/// What the changes of some entries follow from.
struct ChangeTerms {
  VectorView logits;         ///< [entries]
  VectorView weights;        ///< [entries], shares of attention.rest
  VectorView squared_norms;  ///< [entries], of the values
  MatrixView values;         ///< [entries, head_dim]
  VectorView output;         ///< o [head_dim]
  double output_norm = 0;    ///< || o ||^2
  const QueryAttention& attention;
  const ValueSpace& space;
};

/// The entries' changes, w^2 || a v_j - b o ||^2, all but the dominant one's.
///
/// changes  [entries], in: v_j . o in the space (of `value`: anything); out: the changes
void measure_changes(Change change, const ChangeTerms& terms, std::span<double> changes);

/// The dominant entry's change.
///
/// value   its value [head_dim]
/// others  the output without it [head_dim]; zeros if it is alone
double dominant_change(Change change, const QueryAttention& attention, VectorView value, VectorView others,
                       const ValueSpace& space);

}  // namespace kvbound::reference
