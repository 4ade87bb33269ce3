#include "replay_section.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "agreement_section.hpp"

namespace kvbound::sim {
namespace {

constexpr int64_t kMostHeads = 250'000;  // (run, layer, query head) of a trace in a page

int64_t bytes_of(const std::string& storage) { return storage == "F64" ? 8 : storage == "F32" ? 4 : 2; }

// A trace of the document.
struct ReplayedTrace {
  ReplayedTrace(const JsonField& replayed, const std::string& base_policy);

  // What a run is called among the others: its policy, and its backend if there are several.
  std::string label(const JsonField& run) const;
  double bytes(const JsonField& run) const;
  Json run_keys() const;
  // The layers whose heads the page has: every layer, or evenly chosen ones of very many.
  std::vector<size_t> shown_layers() const;

  JsonField trace;
  std::string base;  // canonical; empty: none
  int64_t query_heads, kv_heads, layers;
  std::vector<JsonField> runs;
  std::vector<std::vector<JsonField>> layers_of;  // [runs][layers]
  bool many_backends = false;
};

ReplayedTrace::ReplayedTrace(const JsonField& replayed, const std::string& base_policy)
    : trace(replayed),
      base(base_policy),
      query_heads(trace.member("query_heads").integer(1, kMostParts)),
      kv_heads(trace.member("kv_heads").integer(1, kMostParts)),
      layers(std::ssize(trace.member("replayed_layers").items())),
      runs(trace.member("runs").items()) {
  for (const JsonField& run : runs) {
    layers_of.push_back(run.member("layers").items());
    if (std::ssize(layers_of.back()) != layers)
      run.member("layers").refuse(
          fmt::format("has {} layers; expected the {} replayed ones", layers_of.back().size(), layers));
    require_room(run, {std::ssize(runs), layers, query_heads});
    many_backends |= run.member("backend").text() != runs.front().member("backend").text();
  }
}

std::string ReplayedTrace::label(const JsonField& run) const {
  const std::string policy = brief(run.member("policy").text());
  return many_backends ? fmt::format("{}, {}", policy, run.member("backend").text()) : policy;
}

double ReplayedTrace::bytes(const JsonField& run) const {
  double entries = 0;
  for (const JsonField& layer : run.member("layers").items()) {
    for (const double kept : layer.member("kept").numbers_or_nan(kv_heads)) entries += kept;
  }
  return entries * 2 *
         static_cast<double>(trace.member("head_dim").integer(1, kMostParts) *
                             bytes_of(trace.member("storage").text()));
}

Json ReplayedTrace::run_keys() const {
  Json keys;
  std::map<std::pair<std::string, std::string>, size_t> bases;  // by budget and backend
  for (size_t r = 0; r < runs.size(); ++r) {
    if (runs[r].member("policy").text() == base)
      bases.try_emplace({runs[r].member("budget").text(), runs[r].member("backend").text()}, r);
  }
  for (const JsonField& run : runs) {
    const auto found = bases.find({run.member("budget").text(), run.member("backend").text()});
    const auto violations = run.optional_member("violations");
    keys["place"].push_back(keys["place"].size());
    keys["run"].push_back(label(run));
    keys["policy"].push_back(brief(run.member("policy").text()));
    keys["canonical"].push_back(run.member("policy").text());
    keys["backend"].push_back(run.member("backend").text());
    keys["budget"].push_back(run.member("budget").text());
    keys["entries"].push_back(run.member("entries").integer());
    keys["base"].push_back(found == bases.end() ? Json() : Json(found->second));
    keys["violations"].push_back(violations ? Json(violations->integer()) : Json());
    keys["bytes"].push_back(bytes(run));
  }
  return keys;
}

std::vector<size_t> ReplayedTrace::shown_layers() const {
  const int64_t all = std::ssize(runs) * layers * query_heads;
  const int64_t step = (all + kMostHeads - 1) / kMostHeads;
  std::vector<size_t> shown;
  for (int64_t l = 0; l < layers; l += step) shown.push_back(static_cast<size_t>(l));
  return shown;
}

Json layer_keys(const ReplayedTrace& replayed, const std::vector<size_t>& shown) {
  Json keys{{"layer", Json::array()}};
  for (const size_t l : shown)
    keys["layer"].push_back(replayed.layers_of.front()[l].member("layer").integer());
  return keys;
}

// A cube with the axes of runs and of the layers that the page has; an axis of heads is to follow.
Cube runs_and_layers(const ReplayedTrace& replayed) {
  Cube cube;
  cube.add_axis(replayed.run_keys());
  cube.add_axis(layer_keys(replayed, replayed.shown_layers()));
  return cube;
}

// L and the like, of each run, layer and query head.
Cube heads_cube(const ReplayedTrace& replayed) {
  const std::vector<size_t> shown = replayed.shown_layers();
  Cube cube = runs_and_layers(replayed);
  cube.add_counted_axis("head", replayed.query_heads);
  const std::vector<double> none(static_cast<size_t>(replayed.query_heads), kUndefined);
  for (const auto& layers : replayed.layers_of) {
    for (const size_t l : shown) {
      for (const char* name : {"perturbation", "relative", "bound", "tightness", "stage_one_at_most_half"}) {
        const auto numbers = layers[l].optional_member(name);
        cube.append(name, numbers ? numbers->numbers_or_nan(replayed.query_heads) : none);
      }
    }
  }
  return cube;
}

// Entries that each KV head has, of each run and layer.
Cube budgets_cube(const ReplayedTrace& replayed) {
  Cube cube = runs_and_layers(replayed);
  cube.add_counted_axis("KV head", replayed.kv_heads);
  for (const auto& layers : replayed.layers_of) {
    for (const size_t l : replayed.shown_layers())
      cube.append("kept", layers[l].member("kept").numbers_or_nan(replayed.kv_heads));
  }
  return cube;
}

// The first run whose heads or layers have different numbers of entries.
std::optional<size_t> shared_out(const ReplayedTrace& replayed) {
  for (size_t r = 0; r < replayed.runs.size(); ++r) {
    std::vector<double> all;
    for (const JsonField& layer : replayed.layers_of[r]) {
      for (const double kept : layer.member("kept").numbers_or_nan(replayed.kv_heads)) all.push_back(kept);
    }
    if (std::ranges::adjacent_find(all, std::not_equal_to()) != all.end()) return r;
  }
  return std::nullopt;
}

const FigureAxis kBudget{"entries", "budget, entries per KV head", false, true};

void add_perturbations(Section& section, const std::string& cube) {
  section.add(
      cube,
      {.kind = "lines",
       .title = "Perturbation against budget",
       .how =
           "Relative change of a query head's contribution to the hidden state, ||(aV - a'V') W^O||_1 / ||a V W^O||_1, "
           "mean over layers and query heads; the band holds the middle half of them. Lower is better.",
       .x = kBudget,
       .y = {"relative", "relative L", false, true},
       .series = "run",
       .more = {{"band", "quartiles"}}});
  section.add(cube, {.kind = "lines",
                     .title = "Layer profile",
                     .how = "The same, layer by layer, at one budget: mean over query heads.",
                     .x = {"layer", "layer"},
                     .y = {"relative", "relative L", false, true},
                     .series = "run",
                     .pick = {{"budget"}},
                     .more = {{"band", nullptr}}});
}

// Figures of the change against the base, if there is one and another policy.
void add_change(Section& section, const std::string& cube, const ReplayedTrace& replayed) {
  const auto other = std::ranges::find_if(
      replayed.runs, [&](const JsonField& run) { return run.member("policy").text() != replayed.base; });
  if (replayed.base.empty() || other == replayed.runs.end()) return;
  section.add(
      cube,
      {.kind = "lines",
       .title = fmt::format("Change against {}", brief(replayed.base)),
       .how =
           "By how much the mean L over layers and query heads differs from the base's, as a share of that; the band is "
           "the 95 % interval of this ratio, from its pairs. Below 0 the policy is better.",
       .x = kBudget,
       .y = {{{"column", "perturbation"}, {"beside", true}}, "change of mean L"},
       .series = "run",
       .statistic = "change of the mean",
       .more = {{"band", "interval of the change"}}});
  section.add(
      cube,
      {.kind = "heatmap",
       .title = fmt::format("Change against {}, by layer and query head", brief(replayed.base)),
       .how =
           "(L - L of the base) / L of the base: below 0 (purple) the policy is better in that head, above 0 (orange) "
           "worse. A head of small L may change by much.",
       .x = {"head", "query head"},
       .y = {"layer", "layer"},
       .pick = {{"run", replayed.label(*other)}, {"budget"}},
       .more = {
           {"value", {{"value", {{"column", "perturbation"}, {"against", true}}}, {"label", "change of L"}}},
           {"scale", "diverging"}}});
}

void add_stage_one(Section& section, const std::string& cube, const Cube& numbers) {
  if (!numbers.says_something("stage_one_at_most_half")) return;
  section.add(
      cube,
      {.kind = "lines",
       .title = "Stage one with at most half of the attention",
       .how =
           "Share of decode steps in which stage one's entries have at most 1/2 of the attention, mean over layers and "
           "query heads: there CriticalKV's Assumption 3.4 does not hold.",
       .x = kBudget,
       .y = {"stage_one_at_most_half", "share of steps", false, true},
       .series = "run",
       .more = {{"band", nullptr}}});
}

void add_bounds(Section& section, const std::string& cube, const Cube& numbers) {
  if (!numbers.says_something("bound")) return;
  section.add(
      cube,
      {.kind = "scatter",
       .title = "L against its bound",
       .how =
           "Each point is a layer and query head, mean over decode steps. By Theorem 3.3 of CriticalKV none lies above "
           "the diagonal. Policies that merge have no bound.",
       .x = {"bound", "bound θ, hidden-state units", true},
       .y = {"perturbation", "L, hidden-state units", true},
       .series = "run",
       .more = {{"labels", {"budget", "layer", "head"}}, {"diagonal", "L = θ"}}});
  section.add(
      cube,
      {.kind = "lines",
       .title = "Tightness of the bound",
       .how =
           "L / θ: how much of its bound the perturbation uses, mean over decode steps, layers and query heads; the band "
           "holds the middle half of layers and query heads. Policies that merge have no bound.",
       .x = kBudget,
       .y = {"tightness", "L / θ", false, true},
       .series = "run",
       .more = {{"band", "quartiles"}}});
}

void add_budgets(Section& section, const ReplayedTrace& replayed) {
  const auto run = shared_out(replayed);
  if (!run) return;
  section.add(
      section.add(budgets_cube(replayed)),
      {.kind = "heatmap",
       .title = "Budgets of KV heads",
       .how =
           "Entries that each KV head has at the prompt's end, where an allocation or merging makes them differ. The "
           "filter by query head does not act on them.",
       .x = {"KV head", "KV head"},
       .y = {"layer", "layer"},
       .pick = {{"run", replayed.label(replayed.runs[*run])}, {"budget"}},
       .more = {{"value", {{"value", "kept"}, {"label", "entries"}}}, {"scale", "sequential"}}});
}

Section trace_section(const ReplayedTrace& replayed, const std::string& id) {
  const JsonField& trace = replayed.trace;
  Section section(id, fmt::format("Replay of {}", model_name(trace.member("model"))));
  section.source = trace.member("path").text();
  section.lines.push_back(fmt::format(
      "{}. {} of {} layers, {} query heads on {} KV heads, {} prompt tokens, {} of {} decode steps, {}.",
      trace.member("model").any_text(), replayed.layers, trace.member("layers").integer(),
      replayed.query_heads, replayed.kv_heads, trace.member("prompt_tokens").integer(),
      trace.member("replayed_steps").integer(), trace.member("decode_tokens").integer(),
      trace.member("storage").text()));
  const size_t shown = replayed.shown_layers().size();
  if (std::ssize(replayed.layers_of.front()) != std::ssize(replayed.shown_layers())) {
    section.lines.push_back(
        fmt::format("This page has the figures of {} of these layers, evenly chosen: all means "
                    "and shares are over those.",
                    shown));
  }
  const Cube numbers = heads_cube(replayed);
  const std::string cube = section.add(numbers);
  add_perturbations(section, cube);
  add_change(section, cube, replayed);
  add_stage_one(section, cube, numbers);
  add_bounds(section, cube, numbers);
  add_budgets(section, replayed);
  std::vector<JudgedTensors> judged;
  for (const JsonField& run : replayed.runs) {
    if (const auto agreement = run.optional_member("agreement")) {
      judged.push_back({brief(run.member("policy").text()), run.member("budget").text(),
                        run.member("backend").text(), agreement->items(true)});
    }
  }
  add_agreement(section, judged);
  return section;
}

}  // namespace

Contribution replay_contribution(const Document& document, const std::string& id) {
  const JsonField root = document.root();
  const auto base = root.optional_member("base");
  Contribution contribution;
  for (const JsonField& trace : root.member("traces").items()) {
    const ReplayedTrace replayed(trace, base ? base->text() : "");
    Section section = trace_section(replayed, fmt::format("{}-{}", id, contribution.sections.size() + 1));
    contribution.subjects.push_back(
        {fmt::format("{} ({})", model_name(trace.member("model")), trace.member("path").text()),
         model_name(trace.member("model")), section.cubes[0]["id"]});
    contribution.sections.push_back(std::move(section));
    for (Fact& fact : origin_facts(trace)) contribution.facts.push_back(std::move(fact));
  }
  return contribution;
}

}  // namespace kvbound::sim
