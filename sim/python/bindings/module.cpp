#include <exception>

#include <nanobind/stl/string.h>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/environment.hpp>

#include "bindings.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

// The module's exceptions, of kvbound/errors.py.
struct Exceptions {
  nb::object input, option;
};
Exceptions& exceptions() {
  static Exceptions& kAll = *new Exceptions();  // never destroyed: Python may have ended by then
  return kAll;
}

void raise(const nb::object& type, const std::exception& error) { PyErr_SetString(type.ptr(), error.what()); }

void translate(const std::exception_ptr& thrown, void*) try {
  std::rethrow_exception(thrown);
} catch (const sim::UsageError& error) {
  raise(exceptions().option, error);
} catch (const InvalidPolicy& error) {
  raise(exceptions().option, error);
} catch (const IoError& error) {
  PyErr_SetString(PyExc_OSError, error.what());
} catch (const Error& error) {
  raise(exceptions().input, error);
}

}  // namespace

void bind_errors(nb::module_& module) {
  module.def("set_exceptions", [](nb::object input, nb::object option) {
    exceptions() = {std::move(input), std::move(option)};
  });
  nb::register_exception_translator(translate);
}

}  // namespace kvbound::python

NB_MODULE(_native, module) {
  module.attr("version") = kvbound::sim::version();
  module.attr("revision") = kvbound::sim::revision();
  kvbound::python::bind_program(module);
  kvbound::python::bind_errors(module);
  kvbound::python::bind_results(module);
  kvbound::python::bind_checks(module);
  kvbound::python::bind_traces(module);
  kvbound::python::bind_runs(module);
  kvbound::python::bind_diff(module);
  kvbound::python::bind_replay(module);
  kvbound::python::bind_evaluate(module);
}
