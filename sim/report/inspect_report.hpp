// What `inspect` prints.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/study/inspect_cubes.hpp>

namespace kvbound::sim {

/// What the trace's header says, and the hash of its numbers.
std::string trace_text(const traces::TraceInfo& info, const std::string& sha256);

/// Tables of the layers that were verified and of the heads that were measured, means over
/// each layer and over all.
///
/// part     of the inspection
/// columns  of the heads' table; empty: those shown by default
std::string text_report(const Inspection& inspection, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns);

}  // namespace kvbound::sim
