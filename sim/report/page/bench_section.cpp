#include "bench_section.hpp"

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

std::string shape_line(const JsonField& root) {
  const JsonField shape = root.member("shape");
  return fmt::format(
      "One layer of {}: {} tokens, {} query heads on {} KV heads, head_dim {}, model_dim {}, {}.",
      shape.member("name").text(), shape.member("tokens").integer(), shape.member("query_heads").integer(),
      shape.member("kv_heads").integer(), shape.member("head_dim").integer(),
      shape.member("model_dim").integer(), root.member("storage").text());
}

std::string operation_name(const JsonField& operation) {
  const auto policy = operation.optional_member("policy");
  const std::string name = operation.member("operation").text();
  return policy ? fmt::format("{}, {}", name, brief(policy->text())) : name;
}

double median(const JsonField& spread) { return spread.member("median").number(); }

void append_time(PageCube& cube, const JsonField& time) {
  const bool is_flop = time.member("unit").text() == "FLOP";
  const auto bytes = time.optional_member("bytes");
  const double work = time.member("work").number(), seconds = median(time.member("seconds"));
  cube.append("seconds", seconds);
  cube.append("rate", is_flop && seconds > 0 ? work / seconds : kUndefined);
  cube.append("intensity", is_flop && bytes && bytes->number() > 0 ? work / bytes->number() : kUndefined);
}

// How far a ratio is beyond its goal: above 1 it is met.
double share_of_goal(const JsonField& operation) {
  const auto goal = operation.optional_member("goal"), ratio = operation.optional_member("ratio");
  if (!goal || !ratio || !(median(*ratio) > 0)) return kUndefined;
  const auto at_least = goal->optional_member("at_least");
  return at_least ? median(*ratio) / at_least->positive()
                  : goal->member("at_most").positive() / median(*ratio);
}

// Rates of what operations are measured against, as the roof of a figure.
Json ceilings(const JsonField& root) {
  Json all = Json::array();
  for (const JsonField& ceiling : root.member("ceilings").items(true)) {
    const double rate = median(ceiling.member("per_second"));
    const bool is_bytes = ceiling.member("unit").text() == "bytes";
    all.push_back({{"name", ceiling.member("name").text()}, {is_bytes ? "slope" : "level", rate}});
  }
  return all;
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

struct LaunchFigures {
  double seconds, flop, bytes;
};

LaunchFigures figures_of(const JsonField& launch) {
  const JsonField counts = launch.member("counts");
  return {launch.member("model").member("predicted_seconds").number(),
          counts.member("mma_flop").number() + counts.member("warpgroup_mma_flop").number(),
          launch.member("bytes_read").number() + launch.member("bytes_written").number()};
}

// Every launch of every operation.
PageCube launches_cube(const JsonField& root) {
  Json keys{{"kernel", Json::array()}, {"operation", Json::array()}, {"limiter", Json::array()}};
  PageCube cube;
  for (const JsonField& operation : root.member("operations").items()) {
    for (const JsonField& launch : operation.member("launches").items(true)) {
      keys["kernel"].push_back(launch.member("kernel").text());
      keys["operation"].push_back(operation_name(operation));
      keys["limiter"].push_back(launch.member("model").member("limiter").text());
      const auto [seconds, flop, bytes] = figures_of(launch);
      const bool has_rate = flop > 0 && bytes > 0 && seconds > 0;
      cube.append("rate", has_rate ? flop / seconds : kUndefined);
      cube.append("intensity", has_rate ? flop / bytes : kUndefined);
    }
  }
  cube.add_axis(std::move(keys));
  return cube;
}

// Predicted time of operations, and the share of it that the floor is.
PageCube operations_cube(const JsonField& root) {
  Json keys{{"operation", Json::array()}, {"limiter", Json::array()}};
  PageCube cube;
  for (const JsonField& operation : root.member("operations").items()) {
    keys["operation"].push_back(operation_name(operation));
    keys["limiter"].push_back(operation.member("limiter").text());
    const double seconds = operation.member("predicted_seconds").positive();
    cube.append("seconds", seconds);
    cube.append("floor", operation.member("floor_seconds").number_or_nan() / seconds);
  }
  cube.add_axis(std::move(keys));
  return cube;
}

}  // namespace

Contribution bench_contribution(const Document& document, const std::string& id) {
  const JsonField root = document.root();
  Section section(id, fmt::format("Speed, backend {}", root.member("backend").text()));
  section.lines.push_back(shape_line(root));
  Json keys{{"operation", Json::array()}};
  PageCube cube;
  for (const JsonField& operation : root.member("operations").items()) {
    keys["operation"].push_back(operation_name(operation));
    append_time(cube, operation.member("times").items().front());
    cube.append("of goal", share_of_goal(operation));
  }
  cube.add_axis(std::move(keys));
  const std::string data = section.add(cube);
  section.add(data, {.kind = "dots",
                     .title = "Time of operations",
                     .how = "Median over rounds; shorter is better.",
                     .x = {"seconds", "seconds", true},
                     .y = {"", "operation"},
                     .more = {{"labels", {"operation"}}}});
  if (cube.says_something("of goal")) {
    section.add(
        data,
        {.kind = "dots",
         .title = "Goals",
         .how =
             "How far an operation's ratio against what it is measured against reaches its goal. Beyond 1 it is met.",
         .x = {"of goal", "share of the goal"},
         .y = {"", "operation"},
         .more = {{"labels", {"operation"}}, {"limit", {{"at", 1}, {"name", "goal"}}}}});
  }
  if (cube.says_something("intensity")) add_roofline(section, data, ceilings(root), "operation");
  return {{std::move(section)}, {}, {{"seed", std::to_string(root.member("seed").integer())}}};
}

Contribution bench_model_contribution(const Document& document, const std::string& id) {
  const JsonField root = document.root(), gpu = root.member("gpu"), constants = gpu.member("constants");
  Section section(id, fmt::format("Speed on an {}, as a model predicts it", gpu.member("name").text()));
  section.lines.push_back(shape_line(root) + " Nothing here was measured.");
  const std::string operations = section.add(operations_cube(root)),
                    launches = section.add(launches_cube(root));
  section.add(operations, {.kind = "dots",
                           .title = "Predicted time of operations",
                           .how = "By the roofline model, coloured by what limits it; shorter is better.",
                           .x = {"seconds", "seconds", true},
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
       .x = {"floor", "floor / predicted time", false, true},
       .y = {"", "operation"},
       .series = "limiter",
       .more = {{"labels", {"operation"}}, {"limit", {{"at", 1}, {"name", "floor"}}}}});
  const auto constant = [&](const char* name) { return constants.member(name).member("value").number(); };
  add_roofline(section, launches,
               Json::array({{{"name", "copy"}, {"slope", constant("copy_bandwidth")}},
                            {{"name", "matrix library"}, {"level", constant("matrix_rate")}}}),
               "kernel");
  return {{std::move(section)}, {}, {{"seed", std::to_string(root.member("seed").integer())}}};
}

}  // namespace kvbound::sim
