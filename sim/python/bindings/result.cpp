#include "result.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/figures/csv.hpp>
#include <kvbound/sim/figures/document.hpp>

#include "bindings.hpp"
#include "views.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

// (name, what it means, its numbers or texts)
nb::tuple column_of(const sim::Column& column) {
  const nb::object values = column.is_text() ? nb::cast(column.texts()) : array_of(column.numbers());
  return nb::make_tuple(column.figure.name, column.figure.meaning, values);
}

nb::list columns_of(const std::vector<sim::Column>& columns) {
  nb::list all;
  for (const sim::Column& column : columns) all.append(column_of(column));
  return all;
}

// (name, [(axis, its keys)], columns)
nb::tuple cube_of(const sim::Cube& cube) {
  nb::list axes;
  for (const sim::SharedAxis& axis : cube.axes)
    axes.append(nb::make_tuple(axis->name, columns_of(axis->keys)));
  return nb::make_tuple(cube.name, axes, columns_of(cube.columns));
}

// All that the result has; with what only CSV has of its rows, if they are asked for.
nb::tuple part_of(const Result& result, bool with_rows) {
  const sim::Part part = [&] {
    const nb::gil_scoped_release free;
    return result.part(with_rows);
  }();
  nb::list cubes;
  for (const sim::Cube& cube : part.cubes) cubes.append(cube_of(cube));
  return nb::make_tuple(part.facts.dump(), cubes);
}

std::string document_of(const Result& result) {
  const nb::gil_scoped_release free;
  std::string text;
  sim::DocumentWriter writer(result.command(), [&](std::string_view piece) { text += piece; });
  writer.add(result.part(false));
  writer.finish(result.provenance());
  return text;
}

std::string csv_of(const Result& result) {
  const nb::gil_scoped_release free;
  const sim::Part part = result.part(true);
  return sim::csv_headings(part) + sim::csv_rows(part);
}

}  // namespace

void bind_results(nb::module_& module) {
  nb::class_<Result>(module, "Result")
      .def("part", &part_of)
      .def("document", &document_of)
      .def("csv", &csv_of)
      .def("text", [](const Result& result, int64_t width) { return result.text({.width = width}); });
}

}  // namespace kvbound::python
