// What `recall` measured: how many of the entries that matter most a score finds.
#pragma once

#include <string>

#include "section.hpp"

namespace kvbound::sim {

/// The section of a document of `recall`.
Contribution recall_contribution(const Document& document, const std::string& id);

}  // namespace kvbound::sim
