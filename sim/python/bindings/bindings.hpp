// The parts of the module.
#pragma once

#include <nanobind/nanobind.h>

namespace kvbound::python {

void bind_program(nanobind::module_& module);
void bind_errors();
void bind_results(nanobind::module_& module);  // first: others derive from its class
void bind_checks(nanobind::module_& module);
void bind_traces(nanobind::module_& module);
void bind_runs(nanobind::module_& module);
void bind_diff(nanobind::module_& module);
void bind_replay(nanobind::module_& module);
void bind_evaluate(nanobind::module_& module);

}  // namespace kvbound::python
