// The file that --json names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/traces/output_file.hpp>

#include "command_line.hpp"

namespace kvbound::sim {

/// nullopt if there is no such option. Throws UsageError if the file is one of the inputs; IoError.
std::optional<traces::OutputFile> json_file(const CommandLine& line, const std::vector<std::string>& inputs);

/// Writes the document and gives the file its name, after all that was printed. Throws IoError.
void write(traces::OutputFile& json, const std::string& document);

}  // namespace kvbound::sim
