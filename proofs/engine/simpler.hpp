// Simplification of instances, for shrinking counterexamples.
#pragma once

#include <vector>

#include "instance.hpp"

namespace kvbound::proofs {

/// All instances that are one step simpler, the largest steps first: fewer tokens, queries, heads and
/// dimensions, then fewer entries kept and smaller, rounder numbers. All of them are valid, and every chain
/// of such steps is finite.
std::vector<Instance> simpler(const Instance& instance);

}  // namespace kvbound::proofs
