#include "predict_section.hpp"

#include <fmt/format.h>
#include <kvbound/sim/options/number.hpp>

namespace kvbound::sim {
namespace {

// A share such as "5%" as a percentage of so many entries; a count likewise.
double percent(const JsonField& amount, int64_t entries) {
  const std::string text = amount.text();
  const bool is_share = text.ends_with('%');
  const auto number = parse_real(is_share ? text.substr(0, text.size() - 1) : text);
  if (!number) amount.refuse("expected a count or a share of entries");
  return is_share ? *number : 100 * *number / static_cast<double>(entries);
}

// The layers' query heads, {layer: [head]}, all with as many heads as the trace.
class Heads {
 public:
  explicit Heads(const JsonField& root)
      : count_(root.member("trace").member("query_heads").integer(1, kMostParts)) {
    keys_["layer"] = Json::array();
    for (const JsonField& layer : root.member("layers").items()) {
      keys_["layer"].push_back(layer.member("layer").integer());
      heads_.push_back(layer.member("query_heads").items());
      if (std::ssize(heads_.back()) != count_)
        layer.member("query_heads")
            .refuse(fmt::format("has {} heads; expected {}", heads_.back().size(), count_));
    }
  }
  void add_axes(PageCube& cube) const {
    cube.add_axis(keys_);
    cube.add_counted_axis("head", count_);
  }
  template <class Use>
  void each(Use use) const {
    for (const auto& layer : heads_) {
      for (const JsonField& head : layer) use(head);
    }
  }
  const JsonField& first() const { return heads_.front().front(); }

 private:
  int64_t count_;
  Json keys_;
  std::vector<std::vector<JsonField>> heads_;
};

std::vector<JsonField> as_many(const JsonField& list, size_t count) {
  std::vector<JsonField> items = list.items();
  if (items.size() != count) list.refuse(fmt::format("has {} items; expected {}", items.size(), count));
  return items;
}

PageCube predictions_cube(const Heads& heads) {
  Json keys{{"scores", Json::array()}, {"predictor", Json::array()}};
  for (const JsonField& prediction : heads.first().member("predictions").items()) {
    keys["scores"].push_back(prediction.member("scores").text());
    keys["predictor"].push_back(prediction.member("predictor").text());
  }
  PageCube cube;
  heads.each([&](const JsonField& head) {
    for (const JsonField& prediction : as_many(head.member("predictions"), keys["scores"].size())) {
      cube.append("relative_error", prediction.member("relative_error").member("median").number_or_nan());
    }
  });
  heads.add_axes(cube);
  cube.add_axis(std::move(keys));
  return cube;
}

PageCube mass_cube(const Heads& heads, int64_t entries) {
  Json keys{{"share", Json::array()}};
  for (const JsonField& mass : heads.first().member("mass").items())
    keys["share"].push_back(percent(mass.member("share"), entries));
  PageCube cube;
  heads.each([&](const JsonField& head) {
    for (const JsonField& mass : as_many(head.member("mass"), keys["share"].size()))
      cube.append("mass", mass.member("mean").number());
  });
  heads.add_axes(cube);
  cube.add_axis(std::move(keys));
  return cube;
}

PageCube reentering_cube(const Heads& heads) {
  PageCube cube;
  heads.each(
      [&](const JsonField& head) { cube.append("ever", head.member("reentering").member("ever").number()); });
  heads.add_axes(cube);
  return cube;
}

}  // namespace

Contribution predict_contribution(const Document& document, const std::string& id) {
  const JsonField root = document.root(), trace = root.member("trace");
  const Heads heads(root);
  Section section(id, fmt::format("Prediction of scores, {}", model_name(trace.member("model"))));
  section.lines.push_back(fmt::format("Over {} decode steps. Entries are evicted by {} at a budget of {}.",
                                      root.member("steps").integer(), brief(root.member("policy").text()),
                                      root.member("budget").text()));
  section.add(
      section.add(predictions_cube(heads)),
      {.kind = "dots",
       .title = "Prediction error",
       .how =
           "Sum of |predicted - actual score| over the sum of scores: the median over decode steps, mean over layers and query "
           "heads. Lower is better; 1 is as bad as predicting 0.",
       .x = {"relative_error", "relative error of predicted scores", true},
       .y = {"", "predictor"},
       .series = "scores",
       .more = {{"labels", {"predictor"}}, {"limit", {{"at", 1}, {"name", "predicting 0"}}}}});
  section.add(
      section.add(mass_cube(heads, trace.member("prompt_tokens").integer(1))),
      {.kind = "lines",
       .title = "Concentration of attention",
       .how =
           "Attention that a decode step pays to the entries that it pays most, mean over steps; the band holds the middle "
           "half of all layers and query heads.",
       .x = {"share", "entries, % of all", true},
       .y = {"mass", "share of the attention", false, true},
       .more = {{"band", "quartiles"}}});
  section.add(
      section.add(reentering_cube(heads)),
      {.kind = "heatmap",
       .title = "Evicted entries that are wanted later",
       .how =
           "Share of the prompt's evicted entries that are, at some decode step, among those of most attention.",
       .x = {"head", "query head"},
       .y = {"layer", "layer"},
       .more = {{"value", {{"value", "ever"}, {"label", "share wanted again"}}}, {"scale", "sequential"}}});
  return {{std::move(section)}, {}, origin_facts(trace)};
}

}  // namespace kvbound::sim
