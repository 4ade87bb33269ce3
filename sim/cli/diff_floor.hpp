// `kvbound diff --floor`: the smallest faults that the judge always finds.
#pragma once

#include <string>

#include <kvbound/sim/options/command_line.hpp>

namespace kvbound::sim {

/// What --help says of --floor.
std::string floor_details();

/// Adds --floor and its options.
void add_floor_options(CommandLine& line);

/// Runs `diff --floor`, or throws UsageError if one of its options is given without it.
///
/// returns  whether --floor was given
bool print_floors(const CommandLine& line);

}  // namespace kvbound::sim
