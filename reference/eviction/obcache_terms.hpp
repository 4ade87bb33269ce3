// Table 2 of OBCache for blocks of entries, implemented in obcache.cpp for
// scored_queries.hpp. Not a public header.
#pragma once

#include <span>

#include <kvbound/reference/core/score_rules.hpp>

#include "output_change.hpp"
#include "value_space.hpp"

namespace kvbound::reference {

/// The scores of a block of entries for one query by Table 2; not valid for the dominant entry.
///
/// scores  [entries], in: v_j . o in the space (for `value`: ignored); out: the scores
void score_entries(Change change, const ChangeTerms& terms, std::span<double> scores);

/// The dominant entry's score; +infinity for `exact` of the only entry.
///
/// value   the dominant entry's value [head_dim]
/// others  the output without the dominant entry [head_dim]; zeros if it is the only entry
double dominant_score(Change change, const QueryAttention& attention, VectorView value, VectorView others,
                      const ValueSpace& space);

}  // namespace kvbound::reference
