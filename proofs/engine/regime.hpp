// Regimes: the special cases that enough drawn instances must belong to, recognised by their numbers.
#pragma once

#include "instance.hpp"

namespace kvbound::proofs {

/// The regimes, decided from an instance's numbers and not from the way in which it was drawn.
enum class Regime {
  // for eviction
  small_stage_one,         ///< sigma < 1/2 for a query
  almost_nothing_evicted,  ///< 0 < evicted mass < 1e-12 for a query
  dominated,               ///< one entry holds more than 1 - 1e-12 of a query's attention, but not all
  tied,             ///< two tokens outside stage one have equal logits for every query and equal values
  empty_stage_two,  ///< stage one is all that is kept
  single_kept,      ///< one entry is kept; if entries merge, all merge into it
  // for merging; scores are those of a head's first query
  nearly_singular,   ///< a cluster whose mean log score is near 0: |m| < KL / 10^6
  nearly_agreed,     ///< a cluster whose scores are nearly equal: 0 < KL < 10^-12
  agreed,            ///< a cluster of equal scores: KL = 0
  huge_logits,       ///< a logit beyond +-5000
  many_votes,        ///< an entry of 10^5 votes or more
  parallel_queries,  ///< two queries of cosine > 0.9999
  /// a cluster and a later query for which all scores, the merged one included, have 0 < epsilon < 1
  predicted,
};
/// The regimes that drawn instances must cover for theorems on eviction, and for theorems on merging.
inline constexpr Regime kEvictionRegimes[] = {Regime::small_stage_one, Regime::almost_nothing_evicted,
                                              Regime::dominated,       Regime::tied,
                                              Regime::empty_stage_two, Regime::single_kept};
inline constexpr Regime kMergingRegimes[] = {
    Regime::single_kept, Regime::nearly_singular, Regime::nearly_agreed,    Regime::agreed,
    Regime::huge_logits, Regime::many_votes,      Regime::parallel_queries, Regime::predicted};
const char* name(Regime regime);
/// Whether an instance belongs to a regime.
bool shows(const Instance& instance, Regime regime);

}  // namespace kvbound::proofs
