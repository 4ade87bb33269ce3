// The parts of an instance that only theorems on merging use.
#pragma once

#include "draw.hpp"
#include "instance.hpp"

namespace kvbound::proofs {

/// Draws votes, query vectors and a moving average's ema; changes
/// logits so that clusters come near their special cases.
void draw_merging(Draw& draw, Instance& instance);

}  // namespace kvbound::proofs
