// The subcommands: each returns the exit code, and throws what main.cpp turns into one.
#pragma once

#include <kvbound/sim/options/command_line.hpp>

namespace kvbound::sim {

int inspect_command(const Arguments& arguments);
int replay_command(const Arguments& arguments);
int recall_command(const Arguments& arguments);
int predict_command(const Arguments& arguments);
int diff_command(const Arguments& arguments);
int generate_command(const Arguments& arguments);
int prove_command(const Arguments& arguments);  // in the program only: the library knows no proofs
int bench_command(const Arguments& arguments);

}  // namespace kvbound::sim
