#include "this_program.hpp"

namespace kvbound::sim {

ThisProgram& this_program() {
  static ThisProgram program;
  return program;
}

}  // namespace kvbound::sim
