// What `predict` measured: how well past scores predict the next ones, and how attention concentrates.
#pragma once

#include <string>

#include "section.hpp"

namespace kvbound::sim {

/// The section of a document of `predict`.
Contribution predict_contribution(const Document& document, const std::string& id);

}  // namespace kvbound::sim
