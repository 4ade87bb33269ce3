// The options of commands that print tables and figures.
#pragma once

#include <kvbound/sim/options/command_line.hpp>
#include "table.hpp"

namespace kvbound::sim {

/// Adds "--plot" and "--markdown".
void add_text_options(CommandLine& line);

/// How to print: as these options say, and in colour on a terminal.
TextStyle text_style(const CommandLine& line);

}  // namespace kvbound::sim
