// One self-contained HTML page of the results of other subcommands.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "document.hpp"

namespace kvbound::sim {

/// The page. It has its script, style and data in itself, and forbids its browser every access to a network.
///
/// command  that makes the page again, for its provenance
/// throws   TraceError where a document lacks what its schema requires
std::string html_page(std::span<const std::unique_ptr<const Document>> documents, const std::string& command);

}  // namespace kvbound::sim
