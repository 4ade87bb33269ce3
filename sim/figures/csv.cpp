#include "csv.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvbound::sim {
namespace {

void add_names(std::vector<std::string>& names, const std::vector<Column>& columns) {
  for (const Column& column : columns) {
    if (std::ranges::find(names, column.figure.name) == names.end()) names.push_back(column.figure.name);
  }
}

std::vector<const Cube*> cubes_of(const Part& part) {
  std::vector<const Cube*> cubes;
  for (const std::string& name : part.rows) {
    if (const Cube* cube = part.find(name)) cubes.push_back(cube);
  }
  return cubes;
}

std::vector<std::string> keys_of(const Part& part) {
  std::vector<std::string> names;
  for (const Cube* cube : cubes_of(part)) {
    for (const SharedAxis& axis : cube->axes) add_names(names, axis->keys);
  }
  return names;
}

std::vector<std::string> columns_of(const Part& part) {
  std::vector<std::string> names;
  for (const Cube* cube : cubes_of(part)) add_names(names, cube->columns);
  return names;
}

// What a field of a cube's rows is taken from: a key of an axis, or a column; neither: always the same text.
struct Source {
  const Column* column = nullptr;
  std::optional<size_t> axis;
  std::string text;

  std::string of(const Cube& cube, int64_t row) const {
    if (!column) return text;
    return csv_field(column->text(axis ? cube.place(row, *axis) : row));
  }
};

Source key_source(const Cube& cube, const std::string& key) {
  for (size_t a = 0; a < cube.axes.size(); ++a) {
    for (const Column& column : cube.axes[a]->keys) {
      if (column.figure.name == key) return {&column, a, ""};
    }
  }
  return {nullptr, std::nullopt, "all"};
}

}  // namespace

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text) {
    field += c;
    if (c == '"') field += c;
  }
  return field + "\"";
}

std::string csv_headings(const Part& part) {
  std::vector<std::string> names;
  add_names(names, part.subject);
  for (const std::vector<std::string>& more : {keys_of(part), columns_of(part)})
    names.insert(names.end(), more.begin(), more.end());
  return fmt::format("{}\n", fmt::join(names, ","));
}

std::string csv_rows(const Part& part) {
  const std::vector<std::string> keys = keys_of(part), columns = columns_of(part);
  std::string start, csv;
  for (const Column& column : part.subject) start += csv_field(column.text(0)) + ",";
  for (const Cube* cube : cubes_of(part)) {
    std::vector<Source> sources;
    for (const std::string& key : keys) sources.push_back(key_source(*cube, key));
    for (const std::string& name : columns) sources.push_back({cube->find(name), std::nullopt, ""});
    for (int64_t row = 0; row < cube->rows(); ++row) {
      csv += start;
      for (const Source& source : sources)
        csv += (&source == sources.data() ? "" : ",") + source.of(*cube, row);
      csv += '\n';
    }
  }
  return csv;
}

}  // namespace kvbound::sim
