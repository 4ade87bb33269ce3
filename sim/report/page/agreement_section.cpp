#include "agreement_section.hpp"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "short_paths.hpp"

namespace kvbound::sim {
namespace {

constexpr size_t kMostNamed = 20;  // tensors with outsiders

// The judged tensors of a document, each with its run.
class JudgedTensors {
 public:
  JudgedTensors(const ReadPart& part, const Cube& cube, const std::optional<JudgedRun>& run)
      : part_(part), cube_(cube), run_(run) {}

  int64_t size() const { return cube_.rows(); }
  std::string policy(int64_t i) const { return run_ ? run_->policy : brief(text("policy", i)); }
  std::string budget(int64_t i) const { return run_ ? run_->budget : text("budget", i); }
  std::string backend(int64_t i) const { return run_ ? run_->backend : text("backend", i); }
  std::string tensor(int64_t i) const { return text("tensor", i); }
  int64_t layer(int64_t i) const {
    const double number = numbers_of(part_, *cube_.axes.front(), "layer")[static_cast<size_t>(i)];
    return std::abs(number) < kMostPlaces ? static_cast<int64_t>(number) : -1;  // NaN: of no layer
  }
  std::string verdict(int64_t i) const {
    const Column* const column = cube_.find("verdict");
    return column && column->is_text() ? column->texts()[static_cast<size_t>(i)] : "";
  }
  double number(const char* name, int64_t i) const {
    const Column* const column = cube_.find(name);
    return column && !column->is_text() ? column->numbers()[static_cast<size_t>(i)] : kUndefined;
  }
  // "Layer 3, score, snapkv at 5% on emulated: 2 of 500 elements are outside their bounds."
  std::string outsiders(int64_t i) const {
    return fmt::format("Layer {}, {}, {} at {} on {}: {} of {} elements are outside their bounds.", layer(i),
                       tensor(i), policy(i), budget(i), backend(i), number("outside", i),
                       number("judged", i));
  }

 private:
  std::string text(const char* key, int64_t i) const {
    return texts_of(part_, *cube_.axes.front(), key)[static_cast<size_t>(i)];
  }

  const ReadPart& part_;
  const Cube& cube_;
  const std::optional<JudgedRun>& run_;
};

// A line for each of the first tensors that have outsiders, and one for all the others.
std::vector<std::string> named_outsiders(const JudgedTensors& judged) {
  std::vector<std::string> lines;
  size_t tensors = 0;
  for (int64_t i = 0; i < judged.size(); ++i) {
    if (judged.number("outside", i) > 0 && ++tensors <= kMostNamed) lines.push_back(judged.outsiders(i));
  }
  if (tensors > kMostNamed)
    lines.push_back(
        fmt::format("Further tensors with elements outside their bounds, which the JSON names: {}.",
                    tensors - kMostNamed));
  return lines;
}

// How many of the judged tensors have elements outside their bounds.
std::string agreement_headline(const JudgedTensors& judged) {
  int64_t outside = 0;
  for (int64_t i = 0; i < judged.size(); ++i) outside += judged.number("outside", i) > 0;
  return outside == 0 ? fmt::format("all {} judged tensors agree with the reference, within their bounds.",
                                    judged.size())
                      : fmt::format("{} of {} judged tensors have elements outside their bounds.", outside,
                                    judged.size());
}

PageCube agreement_cube(const JudgedTensors& judged) {
  Json keys = Json::object();
  PageCube cube;
  for (int64_t i = 0; i < judged.size(); ++i) {
    keys["run"].push_back(fmt::format("{}, {}, {}", judged.policy(i), judged.budget(i), judged.backend(i)));
    keys["policy"].push_back(judged.policy(i));
    keys["budget"].push_back(judged.budget(i));
    keys["backend"].push_back(judged.backend(i));
    keys["layer"].push_back(judged.layer(i));
    keys["tensor"].push_back(judged.tensor(i));
    keys["verdict"].push_back(judged.verdict(i));
    for (const char* name : {"error", "bound", "share"}) cube.append(name, judged.number(name, i));
  }
  if (!keys.empty()) cube.add_axis(std::move(keys));
  return cube;
}

}  // namespace

void add_agreement(Section& section, const ReadPart& part, const std::optional<JudgedRun>& run) {
  const Cube* const tensors = part.find("tensors");
  if (!tensors) return;
  const JudgedTensors judged(part, *tensors, run);
  const PageCube cube = agreement_cube(judged);
  section.headline = agreement_headline(judged);
  for (std::string& line : named_outsiders(judged)) section.lines.push_back(std::move(line));
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
       .more = {{"labels", {"run", "layer", "verdict"}}, {"diagonal", "error = bound"}}});
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

}  // namespace kvbound::sim
