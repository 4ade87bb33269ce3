// Lists of layers as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvbound::traces {

/// The shortest text that lists these layers, which must ascend: "0,3-5".
std::string layer_list(const std::vector<int64_t>& layers);

}  // namespace kvbound::traces
