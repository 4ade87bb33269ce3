// How this program is started, and where its code is.
#pragma once

#include <string>
#include <vector>

namespace kvbound::sim {

struct ThisProgram {
  std::string executable = "/proc/self/exe";
  std::vector<std::string> first{"kvbound"};  ///< arguments before those of the subcommand: argv[0] at least
  std::string code = "/proc/self/exe";        ///< the file that its code was loaded from
};

/// To be changed before anything else is called, by the module of Python: it is the interpreter that is
/// executed.
ThisProgram& this_program();

}  // namespace kvbound::sim
