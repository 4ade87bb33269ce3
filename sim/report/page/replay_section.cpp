#include "replay_section.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/figures/read_part.hpp>
#include <kvbound/sim/measure/mean.hpp>
#include <kvbound/sim/options/number.hpp>

#include "../heads_text.hpp"
#include "agreement_section.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kHeads = "query heads of one prompt";  // what intervals are over
constexpr int64_t kMostHeads = 250'000;                      // (run, layer, query head) of a trace in a page

int64_t bytes_of(const std::string& storage) { return storage == "F64" ? 8 : storage == "F32" ? 4 : 2; }

// A trace of the document.
class ReplayedTrace {
 public:
  explicit ReplayedTrace(const JsonField& part);

  const JsonField& facts() const { return part_.facts; }
  const ReadPart& part() const { return part_; }
  std::string base() const;  // canonical; empty: none
  size_t runs() const { return policies_.size(); }
  // The first run of another policy than the base; none without a base.
  std::optional<size_t> other() const;
  std::string policy(size_t run) const { return policies_[run]; }
  // What a run is called among the others: its policy, and its backend if there are several.
  std::string label(size_t run) const;
  int64_t layers() const { return std::ssize(layers_); }
  // The layers whose heads the page has: every layer, or evenly chosen ones of very many.
  std::vector<size_t> shown_layers() const;
  // Columns of the runs, of the layers that the page has and of heads.
  PageCube heads_cube() const;
  // Layer-relative L of the runs and of the layers that the page has; without columns where
  // the document has no steps.
  PageCube layers_cube() const;
  // Entries that each KV head has, of each run and layer.
  PageCube budgets_cube() const;
  // Budgets as they were named: shares of the prompt if all are, or else entries.
  FigureAxis budget_axis() const;
  // The first run whose heads or layers have different numbers of entries.
  std::optional<size_t> shared_out() const;

 private:
  Json run_keys() const;
  double bytes(size_t run) const;
  // A cube over the runs and the layers that the page has.
  PageCube over_runs_and_layers() const;
  // The cube's axes are runs, layers and heads.
  PageCube of_shown_layers(const Cube& cube, const std::string& head,
                           std::initializer_list<const char*> columns) const;

  ReadPart part_;
  const Cube &runs_, &heads_, &kv_heads_;
  std::vector<std::string> policies_, names_, budgets_, backends_;
  std::vector<int64_t> entries_, layers_;
  std::vector<double> kept_;
  std::optional<std::vector<double>> shares_;  // of the prompt in %, if all budgets are such
  bool many_backends_;
};

// Throws TraceError if the cube does not have so many axes, of which the first is that of runs.
const Cube& of_runs(const ReadPart& part, const char* name, size_t axes) {
  const Cube& cube = part.cube(name);
  if (cube.axes.size() != axes || cube.axes.front()->name != "run" || cube.rows() == 0 ||
      (axes > 1 && cube.axes[1]->name != "layer"))
    part.cubes_field.member(name).refuse(
        fmt::format("expected the first {} of the axes run, layer and heads, all with places", axes));
  return cube;
}

const std::vector<double>& column_of(const ReadPart& part, const Cube& cube, const char* name) {
  const Column* const column = cube.find(name);
  if (!column || column->is_text())
    part.cubes_field.member(cube.name).refuse(fmt::format("has no numbers {}", name));
  return column->numbers();
}

// Budgets such as 2.5% in %; nullopt if one is no such share above 0.
std::optional<std::vector<double>> shares_of(const std::vector<std::string>& budgets) {
  std::vector<double> shares;
  for (const std::string& budget : budgets) {
    const auto share = budget.ends_with('%') ? parse_real(budget.substr(0, budget.size() - 1)) : std::nullopt;
    if (!share || *share <= 0) return std::nullopt;
    shares.push_back(*share);
  }
  return shares;
}

std::vector<std::string> names_of(const std::vector<std::string>& policies,
                                  const std::vector<std::string>& labels) {
  std::vector<std::string> names;
  std::ranges::transform(policies, labels, std::back_inserter(names), policy_name);
  return names;
}

// What budgets are called: kept sets that were given have the budget `given` whatever their sizes, and
// those of different sizes are not to be compared.
std::vector<std::string> budget_names(std::vector<std::string> budgets, const std::vector<int64_t>& entries) {
  for (size_t r = 0; r < budgets.size(); ++r) {
    if (budgets[r] == "given") budgets[r] = fmt::format("{} (given)", entries[r]);
  }
  return budgets;
}

ReplayedTrace::ReplayedTrace(const JsonField& part)
    : part_(read_part(part)),
      runs_(of_runs(part_, "runs", 1)),
      heads_(of_runs(part_, "heads", 3)),
      kv_heads_(of_runs(part_, "kv_heads", 3)),
      policies_(texts_of(part_, *runs_.axes[0], "policy")),
      names_(names_of(policies_, texts_of(part_, *runs_.axes[0], "label"))),
      budgets_(budget_names(texts_of(part_, *runs_.axes[0], "budget"),
                            integers_of(part_, *runs_.axes[0], "entries"))),
      backends_(texts_of(part_, *runs_.axes[0], "backend")),
      entries_(integers_of(part_, *runs_.axes[0], "entries")),
      layers_(integers_of(part_, *heads_.axes[1], "layer")),
      kept_(column_of(part_, kv_heads_, "kept")),
      shares_(shares_of(budgets_)),
      many_backends_(std::ranges::adjacent_find(backends_, std::not_equal_to()) != backends_.end()) {}

std::string ReplayedTrace::base() const {
  const auto base = facts().optional_member("base");
  return base ? base->text() : "";
}

std::optional<size_t> ReplayedTrace::other() const {
  const std::string canonical_base = base();
  const auto found =
      std::ranges::find_if(policies_, [&](const std::string& p) { return p != canonical_base; });
  if (canonical_base.empty() || found == policies_.end()) return std::nullopt;
  return static_cast<size_t>(found - policies_.begin());
}

std::string ReplayedTrace::label(size_t run) const {
  return many_backends_ ? fmt::format("{}, {}", names_[run], backends_[run]) : names_[run];
}

double ReplayedTrace::bytes(size_t run) const {
  const size_t each = kept_.size() / runs();
  const double entries = std::accumulate(kept_.begin() + static_cast<std::ptrdiff_t>(run * each),
                                         kept_.begin() + static_cast<std::ptrdiff_t>((run + 1) * each), 0.0);
  return entries * 2 *
         static_cast<double>(facts().member("head_dim").integer(1, kMostParts) *
                             bytes_of(facts().member("storage").text()));
}

Json ReplayedTrace::run_keys() const {
  Json keys;
  const Column* const base = runs_.find("base_run");
  const Column* const violations = runs_.find("violations");
  const auto place = [&](const Column* column, size_t run) -> Json {
    const double number = column && !column->is_text() ? column->numbers()[run] : kUndefined;
    return number >= 0 && number <= static_cast<double>(kMostPlaces) ? Json(static_cast<int64_t>(number))
                                                                     : Json();
  };
  for (size_t r = 0; r < runs(); ++r) {
    const Json of_base = place(base, r);
    if (!of_base.is_null() && of_base.get<size_t>() >= runs())
      part_.cubes_field.member("runs").refuse("has a base_run that is none of its runs");
    keys["place"].push_back(r);
    keys["run"].push_back(label(r));
    keys["policy"].push_back(names_[r]);
    keys["canonical"].push_back(policies_[r]);
    keys["backend"].push_back(backends_[r]);
    keys["budget"].push_back(budgets_[r]);
    keys["entries"].push_back(entries_[r]);
    keys["amount"].push_back(shares_ ? (*shares_)[r] : static_cast<double>(entries_[r]));
    keys["base"].push_back(of_base.is_null() && policies_[r] == this->base() ? Json(r) : of_base);
    keys["violations"].push_back(place(violations, r));
    keys["bytes"].push_back(bytes(r));
  }
  return keys;
}

std::vector<size_t> ReplayedTrace::shown_layers() const {
  const int64_t step = (heads_.rows() + kMostHeads - 1) / kMostHeads;
  std::vector<size_t> shown;
  for (int64_t l = 0; l < layers(); l += std::max<int64_t>(step, 1)) shown.push_back(static_cast<size_t>(l));
  return shown;
}

PageCube ReplayedTrace::over_runs_and_layers() const {
  Json layers{{"layer", Json::array()}};
  for (const size_t l : shown_layers()) layers["layer"].push_back(layers_[l]);
  PageCube page;
  page.add_axis(run_keys());
  page.add_axis(std::move(layers));
  return page;
}

PageCube ReplayedTrace::of_shown_layers(const Cube& cube, const std::string& head,
                                        std::initializer_list<const char*> columns) const {
  const std::vector<size_t> shown = shown_layers();
  const auto heads = static_cast<size_t>(cube.axes[2]->size());
  PageCube page = over_runs_and_layers();
  page.add_counted_axis(head, cube.axes[2]->size());
  const std::vector<double> none(heads, kUndefined);
  for (const char* name : columns) {
    const Column* const column = cube.find(name);
    for (size_t r = 0; r < runs(); ++r) {
      for (const size_t l : shown) {
        const size_t first = (r * layers_.size() + l) * heads;
        page.append(name, column && !column->is_text() ? std::span(column->numbers()).subspan(first, heads)
                                                       : std::span(none));
      }
    }
  }
  return page;
}

PageCube ReplayedTrace::heads_cube() const {
  return of_shown_layers(heads_, "head", {"perturbation", "relative", "bound", "tightness", "stage_one_low"});
}

PageCube ReplayedTrace::layers_cube() const {
  PageCube page = over_runs_and_layers();
  if (!part_.find("layer_steps")) return page;
  const Cube& cube = of_runs(part_, "layer_steps", 3);
  const auto steps = static_cast<size_t>(cube.axes[2]->size());
  const std::span all = column_of(part_, cube, "layer_relative");
  for (size_t r = 0; r < runs(); ++r) {
    for (const size_t l : shown_layers()) {
      Mean mean;
      for (const double number : all.subspan((r * layers_.size() + l) * steps, steps)) mean.add(number);
      page.append("layer_relative", mean.value().value_or(kUndefined));
    }
  }
  return page;
}

PageCube ReplayedTrace::budgets_cube() const { return of_shown_layers(kv_heads_, "KV head", {"kept"}); }

FigureAxis ReplayedTrace::budget_axis() const {
  return {"amount", shares_ ? "budget, % of the prompt" : "budget, entries per KV head", true};
}

std::optional<size_t> ReplayedTrace::shared_out() const {
  const size_t each = kept_.size() / runs();
  for (size_t r = 0; r < runs(); ++r) {
    const auto all = std::span(kept_).subspan(r * each, each);
    if (std::ranges::adjacent_find(all, std::not_equal_to()) != all.end()) return r;
  }
  return std::nullopt;
}

void add_perturbations(Section& section, const std::string& cube, const ReplayedTrace& replayed) {
  section.add(
      cube,
      {.kind = "lines",
       .title = "Perturbation against budget",
       .how =
           "Relative change of a query head's contribution to the hidden state, ||(aV - a'V') W^O||_1 / ||a V W^O||_1, "
           "mean over layers and query heads; the band holds the middle half of them. Lower is better.",
       .x = replayed.budget_axis(),
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

// The picture of the first table: the change against the base, if there is one and another policy, or else
// relative L. Returns the figure's id.
std::string add_picture(Section& section, const std::string& cube, const ReplayedTrace& replayed) {
  if (!replayed.other()) {
    return section.add(cube, {.kind = "whiskers",
                              .title = "Relative L by budget",
                              .how = "Mean over layers and query heads. Lower is better.",
                              .x = {"budget", "budget"},
                              .y = {"relative", "relative L", false, true},
                              .series = "run",
                              .more = {{"band", nullptr}}});
  }
  return section.add(
      cube,
      {.kind = "whiskers",
       .title = fmt::format("Change against {}", brief(replayed.base())),
       .how =
           "By how much the mean relative L over layers and query heads differs from the base's, as a share of "
           "that. Below 0 the policy is better; where a whisker crosses 0, no difference is seen.",
       .x = {"budget", "budget"},
       .y = {{{"column", "relative"}, {"beside", true}}, "change of relative L, %"},
       .series = "run",
       .statistic = "change of the mean, %",
       .more = {{"band", "interval of the change"}, {"unit", kHeads}, {"level", 0}}});
}

// Where another policy than the base is better, head by head.
void add_change(Section& section, const std::string& cube, const ReplayedTrace& replayed) {
  const auto other = replayed.other();
  if (!other) return;
  section.add(
      cube,
      {.kind = "heatmap",
       .title = fmt::format("Change against {}, by layer and query head", brief(replayed.base())),
       .how =
           "log2 of L over the base's L: -1 is half of it, 1 is double. Below 0 (purple) the policy is better in that head, "
           "above 0 (orange) worse. A head of small L may change by much.",
       .x = {"head", "query head"},
       .y = {"layer", "layer"},
       .pick = {{"run", replayed.label(*other)}, {"budget"}},
       .more = {{"value",
                 {{"value", {{"column", "perturbation"}, {"log_ratio", true}}},
                  {"label", "log2(L / L of the base)"}}},
                {"scale", "diverging"}}});
}

void add_stage_one(Section& section, const std::string& cube, const PageCube& numbers,
                   const ReplayedTrace& replayed) {
  if (!numbers.says_something("stage_one_low")) return;
  section.add(
      cube,
      {.kind = "lines",
       .title = "Stage one with at most half of the attention",
       .how =
           "Share of decode steps in which stage one's entries have at most 1/2 of the attention, mean over layers and "
           "query heads: there CriticalKV's Assumption 3.4 does not hold.",
       .x = replayed.budget_axis(),
       .y = {"stage_one_low", "share of steps", false, true},
       .series = "run",
       .more = {{"band", nullptr}}});
}

void add_bounds(Section& section, const std::string& cube, const PageCube& numbers,
                const ReplayedTrace& replayed) {
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
       .x = replayed.budget_axis(),
       .y = {"tightness", "L / θ", false, true},
       .series = "run",
       .more = {{"band", "quartiles"}}});
}

void add_budgets(Section& section, const ReplayedTrace& replayed) {
  const auto run = replayed.shared_out();
  if (!run) return;
  section.add(
      section.add(replayed.budgets_cube()),
      {.kind = "heatmap",
       .title = "Budgets of KV heads",
       .how =
           "Entries that each KV head has at the prompt's end, where an allocation or merging makes them differ. The "
           "filter by query head does not act on them.",
       .x = {"KV head", "KV head"},
       .y = {"layer", "layer"},
       .pick = {{"run", replayed.label(*run)}, {"budget"}},
       .more = {{"value", {{"value", "kept"}, {"label", "entries"}}}, {"scale", "sequential"}}});
}

// Documents that do not say it are of earlier programs, in which KV heads had the caches.
traces::CacheHeads cache_heads_of(const JsonField& trace) {
  const auto heads = trace.find("heads");
  return heads ? traces::cache_heads(heads->text()).value_or(traces::CacheHeads::kv) : traces::CacheHeads::kv;
}

Section described(const ReplayedTrace& replayed, const std::string& id) {
  const JsonField& trace = replayed.facts();
  Section section(id, fmt::format("Replay of {}", model_name(trace.member("model"))));
  section.source = trace.member("path").text();
  section.lines.push_back(
      fmt::format("{}. {} of {} layers, {}, {} prompt tokens, {} of {} decode steps, {}.",
                  trace.member("model").any_text(), replayed.layers(), trace.member("layers").integer(),
                  heads_text(trace.member("query_heads").integer(), trace.member("kv_heads").integer(),
                             cache_heads_of(trace)),
                  trace.member("prompt_tokens").integer(), trace.member("replayed_steps").integer(),
                  trace.member("decode_tokens").integer(), trace.member("storage").text()));
  const size_t shown = replayed.shown_layers().size();
  if (replayed.layers() != std::ssize(replayed.shown_layers())) {
    section.lines.push_back(
        fmt::format("This page has the figures of {} of these layers, evenly chosen: all means "
                    "and shares are over those.",
                    shown));
  }
  return section;
}

// Adds a trace's section and what the first table says of it.
void add_trace(Contribution& contribution, const ReplayedTrace& replayed, const std::string& id) {
  const JsonField& trace = replayed.facts();
  const std::string model = model_name(trace.member("model"));
  Section section = described(replayed, id);
  const PageCube numbers = replayed.heads_cube(), layers = replayed.layers_cube();
  const std::string cube = section.add(numbers);
  contribution.subjects.push_back(
      {.name = model,
       .model = model,
       .cube = cube,
       .source = section.source,
       .layers = layers.says_something("layer_relative") ? section.add(layers) : "",
       .picture = add_picture(section, cube, replayed)});
  add_perturbations(section, cube, replayed);
  add_change(section, cube, replayed);
  add_stage_one(section, cube, numbers, replayed);
  add_bounds(section, cube, numbers, replayed);
  add_budgets(section, replayed);
  section.table =
      figures_table(*replayed.part().find("runs"), "Every figure of the runs, by its name in JSON");
  add_agreement(section, replayed.part());
  contribution.sections.push_back(std::move(section));
  for (Fact& fact : origin_facts(trace)) contribution.facts.push_back(std::move(fact));
}

}  // namespace

Contribution replay_contribution(const Document& document, const std::string& id) {
  Contribution contribution;
  for (const JsonField& part : document.root().member("parts").items())
    add_trace(contribution, ReplayedTrace(part), fmt::format("{}-{}", id, contribution.sections.size() + 1));
  return contribution;
}

}  // namespace kvbound::sim
