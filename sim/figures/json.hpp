// JSON for reports; fields keep the order in which they are set.
#pragma once

#include <nlohmann/json.hpp>

namespace kvbound::sim {

using Json = nlohmann::ordered_json;

}  // namespace kvbound::sim
