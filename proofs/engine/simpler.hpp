// Towards the simplest instance that shows something.
#pragma once

#include <vector>

#include "instance.hpp"

namespace kvbound::proofs {

/// The instances one step simpler, the largest steps first: fewer tokens, queries, heads and dimensions, then
/// fewer entries kept and smaller, rounder numbers. All of them are valid, and no chain of such steps is endless.
std::vector<Instance> simpler(const Instance& instance);

}  // namespace kvbound::proofs
