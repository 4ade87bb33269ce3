#include "recall_section.hpp"

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

constexpr const char* kMeasures[] = {"first_step", "first_step_recent", "mean_step", "mean_step_recent"};

// recall@k of each layer, query head and score with its window.
PageCube recall_cube(const ReadPart& part) {
  const Cube& heads = part.cube("heads", {"layer", "head", "scored"});
  PageCube page;
  page.add_axis({{"layer", integers_of(part, *heads.axes[0], "layer")}});
  page.add_axis({{"head", integers_of(part, *heads.axes[1], "head")}});
  page.add_axis({{"score", texts_of(part, *heads.axes[2], "score")},
                 {"window", integers_of(part, *heads.axes[2], "window")}});
  for (const char* measure : kMeasures) page.append(measure, numbers_or_none(heads, measure));
  return page;
}

}  // namespace

Contribution recall_contribution(const Document& document, const std::string& id) {
  const ReadPart part = only_part(document);
  const int64_t k = part.facts.member("k").integer(1), recent = part.facts.member("recent").integer();
  Section section(id, fmt::format("Recall of {}", model_name(part.facts.member("model"))));
  const std::string cube = section.add(recall_cube(part));
  const auto add = [&](const char* measure, const std::string& errors, bool old) {
    section.add(
        cube,
        {.kind = "lines",
         .title = fmt::format("recall@{} by window, {}{}", k, errors, old ? ", old entries" : ""),
         .how = fmt::format(
             "Share of the {} prompt entries whose eviction, alone, would change outputs most that are also the {} of "
             "largest score over so many last queries{}; the band holds the middle half of all layers and query "
             "heads. Higher is better.",
             k, k, old ? fmt::format(", without the newest {} positions", recent) : ""),
         .x = {"window", "window, last queries", true},
         .y = {measure, fmt::format("recall@{}", k), false, true},
         .series = "score",
         .more = {{"band", "quartiles"}}});
  };
  add("first_step", "first decode step", false);
  add("first_step_recent", "first decode step", true);
  add("mean_step", "all decode steps", false);
  add("mean_step_recent", "all decode steps", true);
  return {{std::move(section)}, {}, origin_facts(part.facts)};
}

}  // namespace kvbound::sim
