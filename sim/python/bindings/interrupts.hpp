// What long work does now and then: Ctrl-C, and a caller's function of progress.
#pragma once

#include <cstdint>

#include <nanobind/nanobind.h>

namespace kvbound::python {

/// Raises what has happened, such as KeyboardInterrupt; call it without the GIL.
///
/// progress  called with what is done, and all; None: nobody
inline void let_python_in(const nanobind::object& progress = {}, int64_t done = 0, int64_t whole = 0) {
  const nanobind::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  if (progress.is_valid() && !progress.is_none()) progress(done, whole);
}

}  // namespace kvbound::python
