// The parts of the module.
#pragma once

#include <nanobind/nanobind.h>

namespace kvbound::python {

void bind_errors(nanobind::module_& module);
void bind_checks(nanobind::module_& module);

}  // namespace kvbound::python
