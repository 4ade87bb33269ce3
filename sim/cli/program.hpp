// The program as functions, which main calls and the entry point of the Python package.
#pragma once

#include <kvbound/sim/options/command_line.hpp>

namespace kvbound::sim {

/// Runs the subcommand, turns what it throws into one line on standard error, and returns the exit code.
/// For a process that does nothing else: occupies standard streams that are closed, cleans up on deadly
/// signals, and ends the process for want of memory.
///
/// arguments  main's, without the program's name
int run_program(const Arguments& arguments);

/// For std::set_new_handler, where an exception could not be relied upon: throwing one allocates, so do
/// destructors, and GCC 12 destroys what it has of an initializer list twice.
[[noreturn]] void end_for_want_of_memory();

}  // namespace kvbound::sim
