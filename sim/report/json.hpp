// JSON as reports write it: fields in the order in which they are set.
#pragma once

#include <cmath>
#include <optional>

#include <nlohmann/json.hpp>

namespace kvbound::sim {

using Json = nlohmann::ordered_json;

/// null where there is no number that JSON could hold.
inline Json json_number(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

}  // namespace kvbound::sim
