// Reads lists of layers such as 0,3-5; traces/layer_list.hpp writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace kvbound::sim {

/// First and last of an item such as "3" or "3-5", within 0..layers-1; nullopt for anything else.
std::optional<std::pair<int64_t, int64_t>> parse_layer_range(std::string_view item, int64_t layers);

/// The layers of a list such as "0,3-5", which must ascend; nullopt for anything else.
std::optional<std::vector<int64_t>> parse_layer_list(std::string_view text, int64_t layers);

}  // namespace kvbound::sim
