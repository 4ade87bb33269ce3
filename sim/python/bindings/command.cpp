// The program: what `kvbound` runs.
#include <dlfcn.h>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/sim/cli/program.hpp>
#include <kvbound/sim/options/this_program.hpp>

#include "bindings.hpp"

namespace nb = nanobind;

namespace kvbound::python {

void bind_program(nb::module_& module) {
  Dl_info loaded{};
  dladdr(reinterpret_cast<void*>(&bind_program), &loaded);
  sim::this_program().code = loaded.dli_fname;
  // start  the interpreter, and what of it runs the program once more
  module.def("run_program", [](const std::vector<std::string>& start, const sim::Arguments& arguments) {
    sim::this_program().executable = start.at(0);
    sim::this_program().first = start;
    const nb::gil_scoped_release free;
    return sim::run_program(arguments);
  });
}

}  // namespace kvbound::python
