// What instances of merging have besides those of eviction.
#pragma once

#include "draw.hpp"
#include "instance.hpp"

namespace kvbound::proofs {

/// Votes, query vectors and a moving average; logits that bring clusters near their special cases.
void draw_merging(Draw& draw, Instance& instance);

}  // namespace kvbound::proofs
