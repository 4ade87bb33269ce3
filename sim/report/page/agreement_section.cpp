#include "agreement_section.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/diff/agreement_summary.hpp>

#include "short_paths.hpp"

namespace kvbound::sim {
namespace {

constexpr size_t kMostNamed = 20;  // tensors with outsiders

// A judged tensor: of a run and a layer, or of a call of a kernel.
struct PageTensor {
  JudgedRun run;
  std::string call;  // empty: of a run
  int64_t layer = -1;
  std::string tensor, verdict;
  double outside = kUndefined, judged = kUndefined, error = kUndefined, bound = kUndefined,
         share = kUndefined;

  bool differs() const { return outside > 0 || verdict == word(Verdict::differs); }
  // "snapkv, 5%, emulated"
  std::string run_text() const {
    return call.empty() ? fmt::format("{}, {}, {}", run.policy, run.budget, run.backend) : call;
  }
  // "Layer 3, score, snapkv at 5% on emulated: 2 of 500 elements are outside their bounds."
  std::string fault() const {
    const std::string place = call.empty() ? fmt::format("Layer {}, {}, {} at {} on {}", layer, tensor,
                                                         run.policy, run.budget, run.backend)
                                           : fmt::format("{}, {}", call, tensor);
    return outside > 0
               ? fmt::format("{}: {} of {} elements are outside their bounds.", place, outside, judged)
               : fmt::format("{}: each element is within its bound, but rows as wholes are not.", place);
  }
};
using PageTensors = std::vector<PageTensor>;

// The judged tensors of a part, if it has any.
//
// run   nullopt: the tensors' keys say which run they are of, unless they are of a call
// call  of a check: what the page calls it
PageTensors judged_tensors(const ReadPart& part, const std::optional<JudgedRun>& run,
                           const std::string& call = {}) {
  PageTensors all;
  const Cube* const cube = part.find("tensors");
  if (!cube) return all;
  if (cube->axes.size() != 1) part.cube("tensors", {"tensor"});  // which throws
  const Axis& axis = *cube->axes.front();
  const auto texts = [&](const char* key) { return texts_of(part, axis, key); };
  const bool has_runs = !run && call.empty();
  const std::vector<std::string> none(static_cast<size_t>(cube->rows()));
  const auto policies = has_runs ? texts("policy") : none, budgets = has_runs ? texts("budget") : none,
             backends = has_runs ? texts("backend") : none, tensors = texts("tensor");
  const Column* const verdicts = cube->find("verdict");
  const std::vector<double> layers = call.empty() ? numbers_of(part, axis, "layer")
                                                  : std::vector<double>(tensors.size(), kUndefined),
                            outside = numbers_or_none(*cube, "outside"),
                            judged = numbers_or_none(*cube, "judged"),
                            errors = numbers_or_none(*cube, "error"),
                            bounds = numbers_or_none(*cube, "bound"),
                            shares = numbers_or_none(*cube, "share");
  for (size_t i = 0; i < tensors.size(); ++i) {
    all.push_back({run.value_or(JudgedRun{brief(policies[i]), budgets[i], backends[i]}), call,
                   std::abs(layers[i]) < kMostPlaces ? static_cast<int64_t>(layers[i]) : -1,  // NaN: of none
                   tensors[i], verdicts && verdicts->is_text() ? verdicts->texts()[i] : "", outside[i],
                   judged[i], errors[i], bounds[i], shares[i]});
  }
  return all;
}

// A line for each of the first tensors that differ, and one for all the others.
std::vector<std::string> named_faults(const PageTensors& judged) {
  std::vector<std::string> lines;
  size_t tensors = 0;
  for (const PageTensor& one : judged) {
    if (one.differs() && ++tensors <= kMostNamed) lines.push_back(one.fault());
  }
  if (tensors > kMostNamed)
    lines.push_back(
        fmt::format("Further tensors that differ, which the JSON names: {}.", tensors - kMostNamed));
  return lines;
}

// How many of the judged tensors differ.
std::string agreement_headline(const PageTensors& judged) {
  const auto differ = std::ranges::count_if(judged, &PageTensor::differs);
  return differ == 0
             ? fmt::format("all {} judged tensors agree with the reference, within their bounds.",
                           judged.size())
             : fmt::format("{} of {} judged tensors differ from the reference.", differ, judged.size());
}

PageCube agreement_cube(const PageTensors& judged) {
  Json keys = Json::object();
  PageCube cube;
  for (const PageTensor& one : judged) {
    keys["run"].push_back(one.run_text());
    keys["policy"].push_back(one.run.policy);
    keys["budget"].push_back(one.run.budget);
    keys["backend"].push_back(one.run.backend);
    keys["layer"].push_back(one.layer);
    keys["tensor"].push_back(one.tensor);
    keys["verdict"].push_back(one.verdict);
    cube.append("error", one.error);
    cube.append("bound", one.bound);
    cube.append("share", one.share);
  }
  if (!keys.empty()) cube.add_axis(std::move(keys));
  return cube;
}

// Figures of errors beside their bounds, and sentences that name the tensors that differ.
void add_judged(Section& section, const PageTensors& judged) {
  const bool has_layers = std::ranges::any_of(judged, [](const PageTensor& one) { return one.layer >= 0; });
  const PageCube cube = agreement_cube(judged);
  section.headline = agreement_headline(judged);
  for (std::string& line : named_faults(judged)) section.lines.push_back(std::move(line));
  if (!cube.says_something("share")) return;
  const std::string id = section.add(cube);
  section.add(
      id,
      {.kind = "scatter",
       .title = "Agreement with the reference: errors beside their bounds",
       .how =
           "Each point is the element of a tensor that uses most of its bound, in units of the tensor. Above the diagonal it "
           "would be wrong. Choices without fault have no number, nor has what is not finite.",
       .x = {"bound", "derived bound of the error", true},
       .y = {"error", "error", true},
       .series = "tensor",
       .more = {{"labels", has_layers ? Json{"run", "layer", "verdict"} : Json{"run", "verdict"}},
                {"diagonal", "error = bound"}}});
  section.add(
      id,
      {.kind = "dots",
       .title = "Agreement with the reference: shares of the bounds",
       .how =
           "How much of its bound the worst element of a tensor uses, the largest over layers. Beyond 1 it is wrong.",
       .x = {"share", "error / bound", true},
       .y = {"", "tensor"},
       .series = "run",
       .statistic = "largest",
       .more = {{"labels", {"tensor"}}, {"limit", {{"at", 1}, {"name", "bound"}}}}});
}

}  // namespace

void add_agreement(Section& section, const ReadPart& part, const std::optional<JudgedRun>& run) {
  if (part.find("tensors")) add_judged(section, judged_tensors(part, run));
}

Contribution diff_contribution(const Document& document, const std::string& id) {
  Contribution contribution;
  for (const JsonField& field : document.root().member("parts").items()) {
    const ReadPart part = read_part(field);
    const JsonField dump = part.facts.member("dump");
    const JudgedRun run{brief(dump.member("policy").text()), dump.member("budget").text(),
                        dump.member("backend").text()};
    const std::string path = dump.member("path").text();
    Section section(id, fmt::format("Another implementation: {}", short_paths({path}).front()));
    section.source = path;
    section.lines.push_back(fmt::format("{} by {} at a budget of {}: {}.", dump.member("policy").text(),
                                        run.backend, run.budget, part.facts.member("verdict").text()));
    add_agreement(section, part, run);
    contribution.sections.push_back(std::move(section));
    for (Fact& fact : origin_facts(part.facts.member("trace"))) contribution.facts.push_back(std::move(fact));
  }
  return contribution;
}

Contribution check_contribution(const Document& document, const std::string& id) {
  Section section(id, "Calls of kernels");
  PageTensors judged;
  int64_t calls = 0;
  std::map<std::string, int64_t> verdicts;
  for (const JsonField& field : document.root().member("parts").items()) {
    const ReadPart part = read_part(field);
    const std::string path = part.facts.member("path").text();
    for (PageTensor& one :
         judged_tensors(part, JudgedRun{}, path.empty() ? "a call" : short_paths({path}).front()))
      judged.push_back(std::move(one));
    ++verdicts[part.facts.member("verdict").text()];
    ++calls;
  }
  std::vector<std::string> counts;
  for (const auto& [verdict, count] : verdicts) counts.push_back(fmt::format("{}: {}", verdict, count));
  section.lines.push_back(fmt::format("Calls, by verdict of {}: {}.", calls, fmt::join(counts, ", ")));
  add_judged(section, judged);
  return {{std::move(section)}, {}, {}};
}

}  // namespace kvbound::sim
