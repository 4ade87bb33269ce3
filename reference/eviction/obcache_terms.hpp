// Table 2 of OBCache for blocks of entries: what obcache.cpp evaluates for scored_queries.hpp. Not a public header.
#pragma once

#include <span>

#include <kvbound/reference/core/score_rules.hpp>

#include "output_change.hpp"
#include "value_space.hpp"

namespace kvbound::reference {

/// The scores of some entries for one query, all but the dominant one's: Table 2.
///
/// scores  [entries], in: v_j . o in the space (of `value`: anything); out: the scores
void score_entries(Change change, const ChangeTerms& terms, std::span<double> scores);

/// The dominant entry's score; +infinity for `exact` of the only entry.
///
/// value   its value [head_dim]
/// others  the output without it [head_dim]; zeros if it is alone
double dominant_score(Change change, const QueryAttention& attention, VectorView value, VectorView others,
                      const ValueSpace& space);

}  // namespace kvbound::reference
