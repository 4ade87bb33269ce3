#include "recall_section.hpp"

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

constexpr const char* kMeasures[] = {"first_step", "first_step_recent", "mean_step", "mean_step_recent"};

// recall@k of each layer, score with its window, and query head.
PageCube recall_cube(const JsonField& root) {
  const int64_t query_heads = root.member("trace").member("query_heads").integer(1, kMostParts);
  const std::vector<JsonField> layers = root.member("layers").items();
  Json layer_keys{{"layer", Json::array()}}, scored{{"score", Json::array()}, {"window", Json::array()}};
  for (const JsonField& score : layers.front().member("scores").items()) {
    scored["score"].push_back(score.member("score").text());
    scored["window"].push_back(score.member("window").integer(1));
  }
  PageCube cube;
  for (const JsonField& layer : layers) {
    layer_keys["layer"].push_back(layer.member("layer").integer());
    const std::vector<JsonField> scores = layer.member("scores").items();
    if (scores.size() != scored["score"].size())
      layer.member("scores").refuse(
          fmt::format("has {} scores; expected {}", scores.size(), scored["score"].size()));
    for (const JsonField& score : scores) {
      const std::vector<JsonField> heads = score.member("query_heads").items();
      if (std::ssize(heads) != query_heads)
        score.member("query_heads")
            .refuse(fmt::format("has {} heads; expected {}", heads.size(), query_heads));
      for (const JsonField& head : heads) {
        for (const char* measure : kMeasures) cube.append(measure, head.member(measure).number());
      }
    }
  }
  cube.add_axis(std::move(layer_keys));
  cube.add_axis(std::move(scored));
  cube.add_counted_axis("head", query_heads);
  return cube;
}

}  // namespace

Contribution recall_contribution(const Document& document, const std::string& id) {
  const JsonField root = document.root(), trace = root.member("trace");
  const int64_t k = root.member("k").integer(1), recent = root.member("recent").integer();
  Section section(id, fmt::format("Recall of {}", model_name(trace.member("model"))));
  const std::string cube = section.add(recall_cube(root));
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
  return {{std::move(section)}, {}, origin_facts(trace)};
}

}  // namespace kvbound::sim
