#include <new>

#include <kvbound/reference/numerics/quiet_threads.hpp>

#include "program.hpp"

namespace {

// Before static objects, some of which allocate.
[[gnu::constructor(101)]] void end_without_memory() {
  std::set_new_handler(kvbound::sim::end_for_want_of_memory);
}

}  // namespace

int main(int argc, char** argv) {
  kvbound::reference::quiet_threads(argv);
  return kvbound::sim::run_program({argv + 1, argv + argc});
}
