// A null baseline: keeps the first entries, the newest, and others that are drawn at
// random; entries are not ranked.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/draw.hpp>

namespace kvbound::reference {

/// The positions of a prompt that one KV head keeps.
///
///     0..sinks - 1,   n - newest..n - 1
///
/// and of the others the budget - sinks - newest with the smallest draws.
///
/// With one seed, what a budget keeps is among what any larger budget keeps.
///
/// prompt_tokens  n
/// budget         sinks + newest..n
/// seed           of the KV head's draws; ties: the smaller position
/// returns        [budget] ascending positions
/// throws         ShapeMismatch if sinks or newest is negative, or the budget is out of its range
/// source         a null baseline; no paper
std::vector<int64_t> sinks_drawn_and_newest(int64_t prompt_tokens, int64_t sinks, int64_t newest,
                                            int64_t budget, const DrawSeed& seed);

}  // namespace kvbound::reference
