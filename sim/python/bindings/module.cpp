#include <exception>

#include <nanobind/stl/string.h>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/environment.hpp>

#include "bindings.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

// name  of a class of kvbound/errors.py
void raise(const char* name, const std::exception& error) {
  PyErr_SetString(nb::module_::import_("kvbound.errors").attr(name).ptr(), error.what());
}

void translate(const std::exception_ptr& thrown, void*) try {
  std::rethrow_exception(thrown);
} catch (const sim::UsageError& error) {
  raise("InvalidOption", error);
} catch (const InvalidPolicy& error) {
  raise("InvalidOption", error);
} catch (const IoError& error) {
  PyErr_SetString(PyExc_OSError, error.what());
} catch (const Error& error) {
  raise("InvalidInput", error);
}

}  // namespace

void bind_errors() { nb::register_exception_translator(translate); }

}  // namespace kvbound::python

NB_MODULE(_native, module) {
  module.attr("version") = kvbound::sim::version();
  module.attr("revision") = kvbound::sim::revision();
  kvbound::python::bind_program(module);
  kvbound::python::bind_errors();
  kvbound::python::bind_results(module);
  kvbound::python::bind_checks(module);
  kvbound::python::bind_traces(module);
  kvbound::python::bind_runs(module);
  kvbound::python::bind_diff(module);
  kvbound::python::bind_replay(module);
  kvbound::python::bind_evaluate(module);
}
