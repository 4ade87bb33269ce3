// Methods that are written in Python, in the place of files of the host `given`.
#pragma once

#include <nanobind/nanobind.h>

#include <kvbound/sim/options/given_method.hpp>

namespace kvbound::python {

/// methods  {name of a file in policies: object of kvbound/methods.py}
sim::GivenMethods methods_of(const nanobind::dict& methods);

}  // namespace kvbound::python
