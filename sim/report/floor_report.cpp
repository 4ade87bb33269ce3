#include "floor_report.hpp"

#include <fmt/format.h>

#include <kvbound/sim/options/command_line.hpp>

#include "agreement_report.hpp"
#include "environment.hpp"
#include "json.hpp"
#include "report.hpp"

namespace kvbound::sim {
namespace {

std::string entries_cell(const std::optional<FaultyEntries>& faulty) {
  return faulty ? fmt::format("{} ({:.3g} %)", faulty->entries, 100 * faulty->weight) : "-";
}

std::string found_cell(std::optional<bool> found) { return !found ? "-" : *found ? "found" : "no"; }

std::string swaps_cell(const std::optional<Swaps>& swaps) {
  return swaps ? fmt::format("{} of {}", swaps->found, swaps->possible) : "-";
}

Json entries_json(const std::optional<FaultyEntries>& faulty) {
  return faulty ? Json{{"entries", faulty->entries}, {"weight", faulty->weight}} : Json();
}

Json to_json(const DetectionFloor& floor) {
  return {{"operation", floor.operation},
          {"layer", floor.layer},
          {"tokens", floor.tokens},
          {"judged", floor.judged},
          {"factor", json_number(floor.factor)},
          {"halved", floor.halved},
          {"zeros", floor.zeros},
          {"logit_scale", json_number(floor.logit_scale)},
          {"base_2", floor.base_2 ? Json(*floor.base_2) : Json()},
          {"missing", entries_json(floor.missing)},
          {"padding", entries_json(floor.padding)},
          {"swaps",
           floor.swaps ? Json{{"found", floor.swaps->found}, {"possible", floor.swaps->possible}} : Json()}};
}

}  // namespace

std::string text_report(const FloorReport& report, const TextStyle& style) {
  std::string text =
      report.trace ? one_line(report.trace->path) : fmt::format("random numbers, {}", report.shape);
  text += "\n  " + report.declared.text() + "\n\n";
  std::vector<TableRow> rows{{"operation", "tokens", "factor", "logits", "missing", "padding", "swaps",
                              "base 2", "halved", "zeros"}};
  if (report.trace) rows.front().insert(rows.front().begin() + 1, "layer");
  for (const DetectionFloor& floor : report.floors) {
    rows.push_back({floor.operation, std::to_string(floor.tokens), cell(floor.factor),
                    cell(floor.logit_scale), entries_cell(floor.missing), entries_cell(floor.padding),
                    swaps_cell(floor.swaps), found_cell(floor.base_2), found_cell(floor.halved),
                    found_cell(floor.zeros)});
    if (report.trace) rows.back().insert(rows.back().begin() + 1, std::to_string(floor.layer));
  }
  return text + table(rows, {.text = style});
}

std::string json_report(const FloorReport& report) {
  Json document{{"schema", "kvbound-floor-1"}};
  document.update(fields_of(environment()));
  document["seed"] = report.trace ? Json() : Json(report.seed);
  document["trace"] = report.trace ? trace_json(*report.trace, report.trace_sha256) : Json();
  document["shape"] = report.trace ? Json() : Json(report.shape);
  document["declared"] = to_json(report.declared);
  document["floors"] = Json::array();
  for (const DetectionFloor& floor : report.floors) document["floors"].push_back(to_json(floor));
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
