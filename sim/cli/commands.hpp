// The subcommands. Each returns the exit code; main.cpp turns the exceptions that they throw into exit codes.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/options/command_line.hpp>

namespace kvbound::sim {

/// What a command is for; --help of the program lists the commands by it.
enum class Purpose { record, look, compare, check, prove, help };

struct Command {
  Purpose purpose;
  std::string_view name;
  std::string_view arguments;
  std::string_view meaning;
  int (*run)(const Arguments&);
};

/// Those of this program: all (all_commands.cpp), or replay alone (replay_alone.cpp).
std::span<const Command> commands();

/// Throws UsageError, with the known ones, if there is none of that name.
const Command& command_named(const std::string& name);

/// What `kvbound --help` prints.
std::string program_help();

int help_command(const Arguments& arguments);
int policies_command(const Arguments& arguments);
int inspect_command(const Arguments& arguments);
int replay_command(const Arguments& arguments);
int recall_command(const Arguments& arguments);
int predict_command(const Arguments& arguments);
int check_command(const Arguments& arguments);
int diff_command(const Arguments& arguments);
int evaluate_command(const Arguments& arguments);
int figures_command(const Arguments& arguments);
int sweep_command(const Arguments& arguments);
int gather_command(const Arguments& arguments);
int record_command(const Arguments& arguments);
int import_command(const Arguments& arguments);
int generate_command(const Arguments& arguments);
int prove_command(const Arguments& arguments);  // in the program only: the library does not link proofs
Part empty_prove_part();                        // likewise: what it writes if it tries nothing
int bench_command(const Arguments& arguments);
int report_command(const Arguments& arguments);

}  // namespace kvbound::sim
