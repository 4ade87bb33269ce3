#include "bench_section.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

std::string shape_line(const JsonField& facts) {
  const JsonField shape = facts.member("shape");
  return fmt::format(
      "One layer of {}: {} tokens, {} query heads on {} KV heads, head_dim {}, model_dim {}, {}.",
      shape.member("name").text(), shape.member("tokens").integer(), shape.member("query_heads").integer(),
      shape.member("kv_heads").integer(), shape.member("head_dim").integer(),
      shape.member("model_dim").integer(), facts.member("storage").text());
}

// Operations with their policies, if any of them has one.
Json operation_names(const ReadPart& part, const Axis& axis) {
  Json names = texts_of(part, axis, "operation");
  if (std::ranges::find(axis.keys, "policy", [](const Column& key) { return key.figure.name; }) ==
      axis.keys.end())
    return names;
  const std::vector<std::string>& policies = texts_of(part, axis, "policy");
  for (size_t i = 0; i < policies.size(); ++i) {
    if (!policies[i].empty())
      names[i] = fmt::format("{}, {}", names[i].get<std::string>(), brief(policies[i]));
  }
  return names;
}

// Columns of a cube of operations or of their launches.
PageCube page_cube(const Cube& cube, Json keys, std::initializer_list<const char*> columns) {
  PageCube page;
  page.add_axis(std::move(keys));
  for (const char* column : columns) page.append(column, numbers_or_none(cube, column));
  return page;
}

// Rates of what operations are measured against, as the roof of a figure.
Json ceilings(const ReadPart& part) {
  Json all = Json::array();
  if (!part.find("ceilings")) return all;
  const Cube& cube = part.cube("ceilings", {"ceiling"});
  const std::vector<std::string>&names = texts_of(part, *cube.axes.front(), "ceiling"),
        &units = column_texts(part, cube, "unit");
  const std::vector<double> rates = numbers_or_none(cube, "per_second");
  for (size_t i = 0; i < names.size(); ++i)
    all.push_back({{"name", names[i]}, {units[i] == "bytes" ? "slope" : "level", rates[i]}});
  return all;
}

double constant(const ReadPart& part, const char* name) {
  const Cube& cube = part.cube("constants", {"constant"});
  const std::vector<std::string>& names = texts_of(part, *cube.axes.front(), "constant");
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) part.cubes_field.member("constants").refuse(fmt::format("have no {}", name));
  return numbers_or_none(cube, "value")[static_cast<size_t>(found - names.begin())];
}

void add_roofline(Section& section, const std::string& cube, const Json& roof, const char* label) {
  section.add(
      cube,
      {.kind = "scatter",
       .title = "Roofline",
       .how =
           "Rate of operations on floating-point numbers beside how many of them there are for each byte of memory. No point "
           "lies above the lines, which are rates of copies and of matrix products.",
       .x = {"intensity", "FLOP per byte", true},
       .y = {"rate", "FLOP/s", true},
       .series = "",
       .more = {{"labels", {label}}, {"ceilings", roof}}});
}

Contribution contribution_of(const Document& document, Section section) {
  const JsonField seed = document.root().member("provenance").member("seed");
  return {{std::move(section)}, {}, {{"seed", std::to_string(seed.integer())}}};
}

}  // namespace

Contribution bench_contribution(const Document& document, const std::string& id) {
  const ReadPart part = only_part(document);
  Section section(id, fmt::format("Speed, backend {}", part.facts.member("backend").text()));
  section.lines.push_back(shape_line(part.facts));
  const Cube& operations = part.cube("operations", {"operation"});
  const PageCube cube =
      page_cube(operations, {{"operation", operation_names(part, *operations.axes.front())}},
                {"seconds", "rate", "intensity", "of_goal"});
  const std::string data = section.add(cube);
  section.add(data, {.kind = "dots",
                     .title = "Time of operations",
                     .how = "Median over rounds; shorter is better.",
                     .x = {"seconds", "seconds", true},
                     .y = {"", "operation"},
                     .more = {{"labels", {"operation"}}}});
  if (cube.says_something("of_goal")) {
    section.add(
        data,
        {.kind = "dots",
         .title = "Goals",
         .how =
             "How far an operation's ratio against what it is measured against reaches its goal. Beyond 1 it is met.",
         .x = {"of_goal", "share of the goal"},
         .y = {"", "operation"},
         .more = {{"labels", {"operation"}}, {"limit", {{"at", 1}, {"name", "goal"}}}}});
  }
  if (cube.says_something("intensity")) add_roofline(section, data, ceilings(part), "operation");
  Contribution made = contribution_of(document, std::move(section));
  if (const auto device = part.facts.optional_member("accelerator"))
    made.facts.emplace_back("accelerator", device->member("name").any_text());
  return made;
}

Contribution bench_model_contribution(const Document& document, const std::string& id) {
  const ReadPart part = only_part(document);
  Section section(id, fmt::format("Speed on an {}, as a model predicts it", part.facts.member("gpu").text()));
  section.lines.push_back(shape_line(part.facts) + " Nothing here was measured.");
  const auto add = [&](const Cube& cube, Json keys, std::initializer_list<const char*> columns) {
    keys["operation"] = operation_names(part, *cube.axes.front());
    keys["limiter"] = column_texts(part, cube, "limiter");
    return section.add(page_cube(cube, std::move(keys), columns));
  };
  const Cube &of_operations = part.cube("operations", {"operation"}),
             &of_launches = part.cube("launches", {"launch"});
  const std::string operations = add(of_operations, Json::object(), {"predicted_seconds", "floor_share"}),
                    launches =
                        add(of_launches, {{"kernel", texts_of(part, *of_launches.axes.front(), "kernel")}},
                            {"rate", "intensity"});
  section.add(operations, {.kind = "dots",
                           .title = "Predicted time of operations",
                           .how = "By the roofline model, coloured by what limits it; shorter is better.",
                           .x = {"predicted_seconds", "seconds", true},
                           .y = {"", "operation"},
                           .series = "limiter",
                           .more = {{"labels", {"operation"}}}});
  section.add(
      operations,
      {.kind = "dots",
       .title = "Share of the floor",
       .how =
           "The time that arguments and results need at the copy's bandwidth and the library's matrix rate, over the "
           "predicted time. 1 is the best that can be.",
       .x = {"floor_share", "floor / predicted time", false, true},
       .y = {"", "operation"},
       .series = "limiter",
       .more = {{"labels", {"operation"}}, {"limit", {{"at", 1}, {"name", "floor"}}}}});
  add_roofline(section, launches,
               Json::array({{{"name", "copy"}, {"slope", constant(part, "copy_bandwidth")}},
                            {{"name", "matrix library"}, {"level", constant(part, "matrix_rate")}}}),
               "kernel");
  return contribution_of(document, std::move(section));
}

}  // namespace kvbound::sim
