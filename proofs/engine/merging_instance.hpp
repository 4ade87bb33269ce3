// What instances of merging have besides those of eviction.
#pragma once

#include "draw.hpp"
#include "instance.hpp"

namespace kvbound::proofs {

/// Votes, query vectors and a moving average; logits that bring clusters near their special cases.
void draw_merging(Draw& draw, Instance& instance);

/// throws  ShapeMismatch or NonFinite, which name what is wrong
void require_valid_merging(const Instance& instance);

/// One of the regimes of merging; none without votes.
bool shows_merging(const Instance& instance, Regime regime);

}  // namespace kvbound::proofs
