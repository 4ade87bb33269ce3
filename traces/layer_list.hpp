// Lists of layers as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvbound::traces {

/// The shortest text that lists these layers, which must ascend: "0,3-5".
std::string layer_list(const std::vector<int64_t>& layers);

/// First and last of an item such as "3" or "3-5", within 0..layers-1; nullopt for anything else.
std::optional<std::pair<int64_t, int64_t>> parse_layer_range(std::string_view item, int64_t layers);

/// The layers of a list such as "0,3-5", which must ascend; nullopt for anything else, and for
/// more layers than `most`.
std::optional<std::vector<int64_t>> parse_layer_list(std::string_view text, int64_t layers,
                                                     int64_t most = INT64_MAX);

}  // namespace kvbound::traces
