#include "floor_report.hpp"

#include <fmt/format.h>

#include <kvbound/sim/diff/agreement_figures.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/list_cube.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>

namespace kvbound::sim {
namespace {

using F = const DetectionFloor&;

std::string found_text(std::optional<bool> found) { return !found ? "" : *found ? "found" : "no"; }

// The entries of a fault, and the share of the attention that they have.
std::vector<FigureOf<DetectionFloor>> entries_figures(const std::string& name, const char* meaning,
                                                      std::optional<FaultyEntries> DetectionFloor::*faulty) {
  const std::string weight = name + "_weight";
  return {{count_figure(name, meaning),
           [faulty](F floor) {
             return floor.*faulty ? static_cast<double>((floor.*faulty)->entries) : kUndefined;
           }},
          {number_figure(weight, "their weight",
                         "the mean over query heads of the attention that these entries have", Format::share),
           [faulty](F floor) { return floor.*faulty ? (floor.*faulty)->weight : kUndefined; }}};
}

std::vector<FigureOf<DetectionFloor>> all_figures() {
  std::vector<FigureOf<DetectionFloor>> figures{
      {count_figure("judged", "outputs, or numbers", Shown::if_asked),
       [](F floor) { return static_cast<double>(floor.judged); }},
      {number_figure("factor", "the least x so that factors 1 - x and 1 + x of all numbers are always found",
                     Better::lower),
       [](F floor) { return floor.factor.value_or(kUndefined); }},
      {number_figure("logit_scale", "logits", "the same of all logits", Better::lower),
       [](F floor) { return floor.logit_scale.value_or(kUndefined); }}};
  for (const auto& entries :
       {entries_figures("missing", "the fewest last entries whose lack is always found",
                        &DetectionFloor::missing),
        entries_figures("padding", "the fewest entries of zeros behind the cache that are always found",
                        &DetectionFloor::padding)})
    figures.insert(figures.end(), entries.begin(), entries.end());
  const std::vector<FigureOf<DetectionFloor>> more{
      {count_figure("swaps", "interchanges of two successive query heads that are always found"),
       [](F floor) { return floor.swaps ? static_cast<double>(floor.swaps->found) : kUndefined; }},
      {count_figure("possible_swaps", "of", "so many such interchanges"),
       [](F floor) { return floor.swaps ? static_cast<double>(floor.swaps->possible) : kUndefined; }},
      {text_figure("base_2", "base 2", "whether 2 instead of e as the base of exponentials is always found"),
       [](F floor) { return found_text(floor.base_2); }},
      {text_figure("halved", "halved", "whether the factor 1/2 is"),
       [](F floor) { return found_text(floor.halved); }},
      {text_figure("zeros", "zeros", "whether the factor 0 is"),
       [](F floor) { return found_text(floor.zeros); }}};
  figures.insert(figures.end(), more.begin(), more.end());
  return figures;
}

const std::vector<FigureOf<DetectionFloor>>& floor_figures() {
  static const std::vector<FigureOf<DetectionFloor>> kFigures = all_figures();
  return kFigures;
}

}  // namespace

Part floor_part(const FloorReport& report) {
  const std::vector<FigureOf<DetectionFloor>> keys{
      {text_figure("operation", "operation",
                   "the dump's tensor; of scores with their score, of merged entries with their method"),
       [](F floor) { return floor.operation; }},
      {count_figure("layer", "the model's number of the layer"),
       [&report](F floor) {
         return report.trace ? static_cast<double>(report.trace->layer_number(floor.layer)) : kUndefined;
       }},
      {count_figure("tokens", "tokens in the cache"),
       [](F floor) { return static_cast<double>(floor.tokens); }}};
  return {{{"trace", report.trace ? trace_facts(*report.trace, report.trace_sha256) : Json()},
           {"shape", report.trace ? Json() : Json(report.shape)},
           {"declared", declared_facts(report.declared)}},
          {list_cube("floors", "floor", keys, floor_figures(), report.floors)},
          {"floors"}};
}

std::vector<Figure> floor_columns() { return figures_of(floor_figures()); }

std::string text_report(const FloorReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  const std::string text =
      report.trace ? one_line(report.trace->path) : fmt::format("random numbers, {}", report.shape);
  return text + "\n  " + report.declared.text() + "\n\n" + cube_table(*part.find("floors"), style, columns);
}

}  // namespace kvbound::sim
