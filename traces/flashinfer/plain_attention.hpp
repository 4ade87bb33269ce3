// FlashInfer's kernels can do more than softmax attention with a causal mask: what a call must not ask for.
#pragma once

#include <cstdint>
#include <optional>

#include "recorded_call.hpp"

namespace kvbound::traces {

/// Requires that no argument of a call of plan, run or a single-request function makes the kernel compute
/// anything but softmax attention of the given queries over the given keys and values: no encoding of
/// positions, capped logits, mask other than the causal one, sinks, scales of quantised caches, variants
/// compiled by the user, nor an argument that is unknown here. A sliding window has to be an integer; whether
/// it hides anything depends on the request. Throws TraceError, naming the argument.
void require_plain_attention(const RecordedCall& call);

/// How many tokens before its own a query sees by window_left, 2^63 - 1 if all;
/// nullopt for what is no integer.
std::optional<int64_t> window_of(const Argument& argument);

}  // namespace kvbound::traces
