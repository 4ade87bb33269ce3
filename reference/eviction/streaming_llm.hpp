// StreamingLLM: keeps the first entries (attention sinks) and the newest; entries are not ranked.
#pragma once

#include <cstdint>
#include <vector>

namespace kvbound::reference {

/// The positions of a prompt that are kept.
///
///     0..sinks - 1  and  n - (budget - sinks)..n - 1
///
/// prompt_tokens  n
/// budget         sinks..n
/// returns        [budget] ascending positions
/// source         StreamingLLM (arXiv:2309.17453), section 3.2
std::vector<int64_t> sinks_and_newest(int64_t prompt_tokens, int64_t sinks, int64_t budget);

}  // namespace kvbound::reference
