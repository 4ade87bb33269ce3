// What `prove` found: theorems, the instances that were tried, and how close they came.
#pragma once

#include <string>

#include "section.hpp"

namespace kvbound::sim {

/// The section of a document of `prove`.
Contribution prove_contribution(const Document& document, const std::string& id);

}  // namespace kvbound::sim
