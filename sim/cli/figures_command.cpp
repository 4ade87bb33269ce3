#include <algorithm>
#include <array>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/bench/bench_cubes.hpp>
#include <kvbound/sim/bench/prediction_cubes.hpp>
#include <kvbound/sim/evaluate/evaluate_cubes.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/list_cube.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include <kvbound/sim/report/against_report.hpp>
#include <kvbound/sim/report/check_against_report.hpp>
#include <kvbound/sim/report/check_report.hpp>
#include <kvbound/sim/report/diff_report.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/floor_report.hpp>
#include <kvbound/sim/study/inspect_cubes.hpp>
#include <kvbound/sim/study/predict_cubes.hpp>
#include <kvbound/sim/study/recall_cubes.hpp>
#include <kvbound/traces/messages.hpp>

#include "commands.hpp"

namespace kvbound::sim {
namespace {

const char* const kFiguresDetails = R"(
Every command that writes results has the same document: "parts", one for each trace or other subject, with facts of the
whole, axes, and cubes, which have a column of values for each figure over the product of their axes, the last of which
varies fastest; and "provenance". Columns and cubes that say nothing are left out, and a number that is not finite is null.
CSV has the rows of some cubes, one below the other. Tables have the figures that are shown by default; --columns takes others by name or heading.
)";

const std::vector<Example> kFiguresExamples{{"kvbound figures"},
                                            {"kvbound figures replay --markdown"},
                                            {"kvbound figures diff check --csv figures.csv"}};

// What a command writes: the part of a result that holds nothing has all cubes, of no rows.
struct Written {
  std::string_view command;
  Part (*empty_part)();
};

constexpr std::array kWritten{
    Written{"inspect", [] { return inspect_part({}); }},
    Written{"replay", [] { return replay_part({}, {}, ReplayDetail::rows); }},
    Written{"recall", [] { return recall_part({}); }},
    Written{"predict", [] { return predict_part({}); }},
    Written{"evaluate", [] { return evaluate_part({}); }},
    Written{"diff", [] { return diff_part({}); }},
    Written{"against", [] { return against_part({}); }},
    Written{"floor", [] { return floor_part({}); }},
    Written{"prove", empty_prove_part},
    Written{"check", [] { return check_part({}); }},
    Written{"check-against", [] { return check_against_part({}); }},
    Written{"bench", [] { return bench_part({}); }},
    Written{"bench-model", [] { return prediction_part({}, {}); }},
};

// A figure of a command's cube, or a key of one of its axes.
struct Row {
  std::string_view command;
  std::string cube;
  std::string axes;  // of the cube; of a key: its axis
  bool is_key;
  Figure figure;
};

std::string axes_text(const Cube& cube) {
  std::vector<std::string> names;
  for (const SharedAxis& axis : cube.axes) names.push_back(axis->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string_view kind(const Row& row) {
  switch (row.figure.format) {
    case Format::number:
      return "number";
    case Format::count:
      return "count";
    case Format::share:
      return "share";
    case Format::duration:
      return "seconds";
    case Format::memory:
      return "bytes";
    case Format::text:
      return "text";
  }
  return "";  // not reached
}

std::string_view better(const Row& row) {
  switch (row.figure.better) {
    case Better::lower:
      return "lower";
    case Better::higher:
      return "higher";
    case Better::neither:
      break;
  }
  return "";
}

void add_rows(const Written& written, std::vector<Row>& rows) {
  const Part part = written.empty_part();
  for (const Cube& cube : part.cubes) {
    for (const SharedAxis& axis : cube.axes) {
      for (const Column& key : axis->keys)
        rows.push_back({written.command, cube.name, axis->name, true, key.figure});
    }
    for (const Column& column : cube.columns)
      rows.push_back({written.command, cube.name, axes_text(cube), false, column.figure});
  }
}

Cube figures_cube(const std::vector<Row>& rows) {
  using R = const Row&;
  return list_cube<Row>(
      "figures", "figure",
      {{text_figure("command", "that writes it"), [](R row) { return std::string(row.command); }},
       {text_figure("cube", "that it is a column of"), [](R row) { return row.cube; }},
       {text_figure("name", "of the column, or the key"), [](R row) { return row.figure.name; }}},
      {{text_figure("heading", "in tables"), [](R row) { return row.figure.heading; }},
       {text_figure("of", "the cube's axes; of a key, the axis that it is of"),
        [](R row) { return row.axes; }},
       {text_figure("role", "key or figure"),
        [](R row) { return std::string(row.is_key ? "key" : "figure"); }},
       {text_figure("kind", "of its values"), [](R row) { return std::string(kind(row)); }},
       {text_figure("better", "which way it is better"), [](R row) { return std::string(better(row)); }},
       {text_figure("shown", "in tables, by default or if it is asked for"),
        [](R row) { return std::string(row.figure.shown == Shown::if_asked ? "if asked" : "by default"); }},
       {text_figure("meaning", "what it says"), [](R row) { return row.figure.meaning; }}},
      rows);
}

}  // namespace

int figures_command(const Arguments& arguments) {
  CommandLine line("figures [COMMAND...] [options]: what the columns of results say", kFiguresDetails,
                   kFiguresExamples);
  add_text_options(line);
  add_output_options(line, "figure");
  line.add_flag("quiet", "no table");
  if (!line.parse(arguments)) return kPass;
  const std::vector<std::string> chosen = line.positionals("COMMAND", 0, SIZE_MAX);
  for (const std::string& name : chosen) {
    if (std::ranges::find(kWritten, name, &Written::command) != kWritten.end()) continue;
    std::vector<std::string_view> known;
    for (const Written& written : kWritten) known.push_back(written.command);
    throw UsageError(fmt::format("no results of a command {}; there are: {}", traces::quoted(name),
                                 fmt::join(known, ", ")));
  }
  std::vector<Row> rows;
  for (const Written& written : kWritten) {
    if (chosen.empty() || std::ranges::find(chosen, written.command) != chosen.end()) add_rows(written, rows);
  }
  Outputs outputs(line, std::vector<std::string>(), "figures");
  const Part part{nlohmann::ordered_json::object(), {figures_cube(rows)}, {"figures"}};
  if (!line.has("quiet")) std::cout << cube_table(part.cubes.front(), text_style(line));
  outputs.write(part, provenance());
  return kPass;
}

}  // namespace kvbound::sim
