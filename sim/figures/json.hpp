// JSON for reports; fields keep the order in which they are set.
#pragma once

#include <cmath>
#include <optional>

#include <nlohmann/json.hpp>

namespace kvbound::sim {

using Json = nlohmann::ordered_json;

/// The number as JSON; null for nullopt, NaN and infinity, which JSON does not have.
inline Json json_number(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

}  // namespace kvbound::sim
