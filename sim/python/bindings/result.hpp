// What replay and evaluate found out: cubes, a text and a document.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include <kvbound/sim/diff/unlikely.hpp>
#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/table.hpp>

namespace kvbound::python {

class Result {
 public:
  virtual ~Result() = default;

  virtual const char* command() const = 0;
  /// As documents have it, or with the rows of CSV.
  virtual sim::Part part(bool with_rows) const = 0;
  virtual std::string text(const sim::TextStyle& style) const = 0;
  /// A document's end.
  virtual sim::Json provenance() const = 0;
};

/// A line for each.
inline std::vector<std::string> unlikely_texts(const sim::ChanceVerdict& chance) {
  std::vector<std::string> all;
  for (const sim::UnlikelyOutput& one : chance.found) all.push_back(sim::text_of(one));
  return all;
}

}  // namespace kvbound::python
