// The special cases that instances must be drawn in, recognised by their numbers.
#pragma once

#include "instance.hpp"

namespace kvbound::proofs {

/// What an instance is an example of, measured on its numbers whatever it was drawn for.
enum class Regime {
  // of eviction
  small_stage_one,         ///< sigma < 1/2 for a query
  almost_nothing_evicted,  ///< 0 < evicted mass < 1e-12 for a query
  dominated,               ///< one entry holds more than 1 - 1e-12 of a query's attention, but not all
  tied,                    ///< two tokens outside stage one that nothing tells apart: no query, no value
  empty_stage_two,         ///< stage one is all that is kept
  single_kept,             ///< one entry is kept; merging, it speaks for all
  // of merging; scores are those of a head's first query
  nearly_singular,   ///< a cluster whose mean score has next to no logarithm: |m| < KL / 10^6
  nearly_agreed,     ///< a cluster whose scores differ, by next to nothing: 0 < KL < 10^-12
  agreed,            ///< a cluster of equal scores: KL = 0
  huge_logits,       ///< a logit beyond +-5000
  many_votes,        ///< an entry of 10^5 votes or more
  parallel_queries,  ///< two queries of cosine > 0.9999
  predicted,  ///< a cluster whose scores by a later query are all predicted within 100 %, its merged one, too
};
/// Those that theorems of eviction are to be tried in, and those of merging.
inline constexpr Regime kEvictionRegimes[] = {Regime::small_stage_one, Regime::almost_nothing_evicted,
                                              Regime::dominated,       Regime::tied,
                                              Regime::empty_stage_two, Regime::single_kept};
inline constexpr Regime kMergingRegimes[] = {
    Regime::single_kept, Regime::nearly_singular, Regime::nearly_agreed,    Regime::agreed,
    Regime::huge_logits, Regime::many_votes,      Regime::parallel_queries, Regime::predicted};
const char* name(Regime regime);
bool shows(const Instance& instance, Regime regime);

}  // namespace kvbound::proofs
