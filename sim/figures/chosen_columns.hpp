// The columns that --columns asks for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <kvbound/sim/options/command_line.hpp>

#include "figure.hpp"

namespace kvbound::sim {

/// Adds --columns C[,C].
///
/// known  the figures that the command's table can have
void add_columns_option(CommandLine& line, std::span<const Figure> known);

/// The figures' names; none if the option is not given: those shown by default. Throws
/// UsageError for what is no column.
std::vector<std::string> chosen_columns(const CommandLine& line, std::span<const Figure> known);

}  // namespace kvbound::sim
