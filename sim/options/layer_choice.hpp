// Layers chosen by the model's own numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// The layers that a list such as "0,3-5" names by the model's own numbers
/// (traces::layer_numbers). A range means those of its layers that the trace has, at least one,
/// and ends at the trace's last layer at the latest.
///
/// returns  their numbers in the trace, ascending without repetition; nullopt if an item names no layer
std::optional<std::vector<int64_t>> layers_named(std::string_view list, const traces::TraceInfo& info);

/// What such a list may have, for messages: "layers or ranges such as 0,3-5 among 0,11,20".
std::string expected_layers(const traces::TraceInfo& info);

}  // namespace kvbound::sim
