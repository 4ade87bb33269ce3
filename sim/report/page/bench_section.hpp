// What `bench` measured, and what its model predicted: operations beside rooflines.
#pragma once

#include <string>

#include "section.hpp"

namespace kvbound::sim {

/// The section of a document of `bench`.
Contribution bench_contribution(const Document& document, const std::string& id);

/// The section of a document of `bench --model`.
Contribution bench_model_contribution(const Document& document, const std::string& id);

}  // namespace kvbound::sim
