// What `evaluate` measured: what a model says when it decodes through compressed caches.
#pragma once

#include <string>

#include "section.hpp"

namespace kvbound::sim {

/// The section of a document of `evaluate`.
Contribution evaluate_contribution(const Document& document, const std::string& id);

}  // namespace kvbound::sim
