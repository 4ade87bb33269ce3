// "kvbound evaluate --make": tasks made from a text, for models whose tokens are bytes.
#pragma once

#include <kvbound/sim/options/command_line.hpp>

namespace kvbound::sim {

/// Adds --make and the options that belong to it.
void add_make_options(CommandLine& line);

/// Throws UsageError if --make is not given but an option is that belongs to it alone.
void refuse_make_options(const CommandLine& line);

/// The part of --help that explains them.
extern const char* const kMakeTasksExplanation;

/// Writes the tasks that --make asks for to the one positional argument. Returns the exit code; throws UsageError and
/// the errors of Prose, needle_tasks, continuation_tasks and OutputFile.
int make_tasks(const CommandLine& line);

}  // namespace kvbound::sim
