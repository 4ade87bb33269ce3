#include "document.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string value_text(const Column& column, int64_t row) {
  if (column.is_text()) {
    const std::string& text = column.texts()[static_cast<size_t>(row)];
    return text.empty() ? "null" : json_text(text);
  }
  const std::string number = column.text(row);
  return number.empty() ? "null" : number;
}

// The members of an object, each on a line of its own.
class Members {
 public:
  Members(const std::function<void(std::string_view)>& write, int depth)
      : write_(write), indent_(static_cast<size_t>(2 * depth), ' ') {
    write_("{");
  }
  void begin(std::string_view name) {
    write_(fmt::format("{}\n{}  {}: ", is_empty_ ? "" : ",", indent_, json_text(name)));
    is_empty_ = false;
  }
  void add(std::string_view name, const Json& value) {
    begin(name);
    write_(json_text(value));
  }
  void end() { write_(is_empty_ ? "}" : "\n" + indent_ + "}"); }

 private:
  const std::function<void(std::string_view)>& write_;
  std::string indent_;
  bool is_empty_ = true;
};

void write_values(const std::function<void(std::string_view)>& write, const Column& column) {
  std::string line = "[";
  for (int64_t row = 0; row < column.size(); ++row) line += (row > 0 ? "," : "") + value_text(column, row);
  write(line + "]");
}

void write_columns(const std::function<void(std::string_view)>& write, const std::vector<Column>& columns,
                   int depth) {
  Members members(write, depth);
  for (const Column& column : columns) {
    if (!column.says_something()) continue;
    members.begin(column.figure.name);
    write_values(write, column);
  }
  members.end();
}

// The axes of all cubes, each once, in the order of their first use.
std::vector<SharedAxis> axes_of(const std::vector<const Cube*>& cubes) {
  std::vector<SharedAxis> axes;
  for (const Cube* cube : cubes) {
    for (const SharedAxis& axis : cube->axes) {
      if (std::ranges::find(axes, axis) == axes.end()) axes.push_back(axis);
    }
  }
  return axes;
}

void write_cube(const std::function<void(std::string_view)>& write, const Cube& cube, int depth) {
  Members members(write, depth);
  Json names = Json::array();
  for (const SharedAxis& axis : cube.axes) names.push_back(axis->name);
  members.add("axes", names);
  members.begin("columns");
  write_columns(write, cube.columns, depth + 1);
  members.end();
}

}  // namespace

DocumentWriter::DocumentWriter(std::string_view command, std::function<void(std::string_view)> write)
    : write_(std::move(write)) {
  write_(fmt::format("{{\n  \"schema\": {},\n  \"command\": {},\n  \"parts\": [",
                     json_text(std::string(kDocumentSchema)), json_text(std::string(command))));
}

void DocumentWriter::add(const Part& part) {
  std::vector<const Cube*> cubes;
  for (const Cube& cube : part.cubes) {
    if (!cube.is_detail && cube.says_something()) cubes.push_back(&cube);
  }
  write_(has_parts_ ? ",\n    " : "\n    ");
  has_parts_ = true;
  constexpr int kDepth = 2;
  Members members(write_, kDepth);
  members.begin("facts");
  Members facts(write_, kDepth + 1);
  for (const auto& [name, value] : part.facts.items()) facts.add(name, value);
  facts.end();
  members.begin("axes");
  Members axes(write_, kDepth + 1);
  for (const SharedAxis& axis : axes_of(cubes)) {
    axes.begin(axis->name);
    write_columns(write_, axis->keys, kDepth + 2);
  }
  axes.end();
  members.begin("cubes");
  Members named(write_, kDepth + 1);
  for (const Cube* cube : cubes) {
    named.begin(cube->name);
    write_cube(write_, *cube, kDepth + 2);
  }
  named.end();
  members.end();
}

void DocumentWriter::finish(const Json& provenance) {
  write_(has_parts_ ? "\n  ],\n" : "],\n");
  write_("  \"provenance\": ");
  Members members(write_, 1);
  for (const auto& [name, value] : provenance.items()) members.add(name, value);
  members.end();
  write_("\n}\n");
}

}  // namespace kvbound::sim
