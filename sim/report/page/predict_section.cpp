#include "predict_section.hpp"

#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/options/number.hpp>

namespace kvbound::sim {
namespace {

// A share such as "5%" as a percentage of so many entries; a count likewise.
double percent(const ReadPart& part, const std::string& share, int64_t entries) {
  const bool is_share = share.ends_with('%');
  const auto number = parse_real(is_share ? share.substr(0, share.size() - 1) : share);
  if (!number)
    part.cubes_field.refuse("have an axis share whose key share is no count and no share of entries");
  return is_share ? *number : 100 * *number / static_cast<double>(entries);
}

// A column of numbers of each layer and query head; `more` are the keys of a third axis.
PageCube of_heads(const ReadPart& part, const Cube& cube, const char* column, Json more = {}) {
  PageCube page;
  page.add_axis({{"layer", integers_of(part, *cube.axes[0], "layer")}});
  page.add_axis({{"head", integers_of(part, *cube.axes[1], "head")}});
  if (!more.is_null()) page.add_axis(std::move(more));
  page.append(column, numbers_or_none(cube, column));
  return page;
}

PageCube predictions_cube(const ReadPart& part) {
  const Cube& cube = part.cube("head_predictors", {"layer", "head", "predictor"});
  return of_heads(part, cube, "relative_error_median",
                  {{"scores", texts_of(part, *cube.axes[2], "scores")},
                   {"predictor", texts_of(part, *cube.axes[2], "predictor")}});
}

PageCube mass_cube(const ReadPart& part) {
  const Cube& cube = part.cube("head_shares", {"layer", "head", "share"});
  const int64_t entries = part.facts.member("prompt_tokens").integer(1);
  Json shares = Json::array();
  for (const std::string& share : texts_of(part, *cube.axes[2], "share"))
    shares.push_back(percent(part, share, entries));
  return of_heads(part, cube, "mass", {{"share", std::move(shares)}});
}

PageCube heads_cube(const ReadPart& part, const char* column) {
  return of_heads(part, part.cube("heads", {"layer", "head"}), column);
}

void add_variances(Section& section, const ReadPart& part) {
  PageCube variances = heads_cube(part, "variance_ratio");
  if (!variances.says_something("variance_ratio")) return;  // the window has all queries
  section.add(
      section.add(std::move(variances)),
      {.kind = "heatmap",
       .title = "Variance of scores in a window",
       .how = fmt::format(
           "Variance of an entry's attention scores over the last {} queries, divided by that over all: mean over entries and "
           "decode steps. About 1 if scores do not depend on when; below 1 if successive scores are alike.",
           part.facts.member("window").integer()),
       .x = {"head", "query head"},
       .y = {"layer", "layer"},
       .more = {{"value", {{"value", "variance_ratio"}, {"label", "variance in the window / whole"}}},
                {"scale", "sequential"}}});
}

}  // namespace

Contribution predict_contribution(const Document& document, const std::string& id) {
  const ReadPart part = only_part(document);
  const JsonField& facts = part.facts;
  Section section(id, fmt::format("Prediction of scores, {}", model_name(facts.member("model"))));
  section.lines.push_back(fmt::format("Over {} decode steps. Entries are evicted by {} at a budget of {}.",
                                      facts.member("steps").integer(), brief(facts.member("policy").text()),
                                      facts.member("budget").text()));
  section.add(
      section.add(predictions_cube(part)),
      {.kind = "dots",
       .title = "Prediction error",
       .how =
           "Sum of |predicted - actual score| over the sum of scores: the median over decode steps, mean over layers and query "
           "heads. Lower is better; 1 is as bad as predicting 0.",
       .x = {"relative_error_median", "relative error of predicted scores", true},
       .y = {"", "predictor"},
       .series = "scores",
       .more = {{"labels", {"predictor"}}, {"limit", {{"at", 1}, {"name", "predicting 0"}}}}});
  section.add(
      section.add(mass_cube(part)),
      {.kind = "lines",
       .title = "Concentration of attention",
       .how =
           "Attention that a decode step pays to the entries that it pays most, mean over steps; the band holds the middle "
           "half of all layers and query heads.",
       .x = {"share", "entries, % of all", true},
       .y = {"mass", "share of the attention", false, true},
       .more = {{"band", "quartiles"}}});
  section.add(
      section.add(heads_cube(part, "reentered_ever")),
      {.kind = "heatmap",
       .title = "Evicted entries that are wanted later",
       .how =
           "Share of the prompt's evicted entries that are, at some decode step, among those of most attention.",
       .x = {"head", "query head"},
       .y = {"layer", "layer"},
       .more = {{"value", {{"value", "reentered_ever"}, {"label", "share wanted again"}}},
                {"scale", "sequential"}}});
  add_variances(section, part);
  return {{std::move(section)}, {}, origin_facts(facts)};
}

}  // namespace kvbound::sim
