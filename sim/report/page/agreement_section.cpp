#include "agreement_section.hpp"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

constexpr size_t kMostNamed = 20;  // tensors with outsiders

// "Layer 3, score, snapkv at 5% on emulated: 2 of 500 elements are outside their bounds."
std::string outsiders(const JudgedTensors& judged, const JsonField& tensor) {
  return fmt::format("Layer {}, {}, {} at {} on {}: {} of {} elements are outside their bounds.",
                     tensor.member("layer").integer(), tensor.member("tensor").text(), judged.policy,
                     judged.budget, judged.backend, tensor.member("outside").integer(),
                     tensor.member("judged").integer());
}

// A line for each of the first tensors that have outsiders, and one for all the others.
std::vector<std::string> named_outsiders(const std::vector<JudgedTensors>& all) {
  std::vector<std::string> lines;
  size_t tensors = 0;
  for (const JudgedTensors& judged : all) {
    for (const JsonField& tensor : judged.tensors) {
      if (tensor.member("outside").integer() > 0 && ++tensors <= kMostNamed)
        lines.push_back(outsiders(judged, tensor));
    }
  }
  if (tensors > kMostNamed)
    lines.push_back(
        fmt::format("Further tensors with elements outside their bounds, which the JSON names: {}.",
                    tensors - kMostNamed));
  return lines;
}

Cube agreement_cube(const std::vector<JudgedTensors>& all) {
  Json keys = Json::object();
  Cube cube;
  for (const JudgedTensors& judged : all) {
    for (const JsonField& tensor : judged.tensors) {
      keys["run"].push_back(fmt::format("{}, {}, {}", judged.policy, judged.budget, judged.backend));
      keys["policy"].push_back(judged.policy);
      keys["budget"].push_back(judged.budget);
      keys["backend"].push_back(judged.backend);
      keys["layer"].push_back(tensor.member("layer").integer());
      keys["tensor"].push_back(tensor.member("tensor").text());
      keys["verdict"].push_back(tensor.member("verdict").text());
      const auto worst = tensor.optional_member("worst");
      for (const char* name : {"error", "bound", "share"})
        cube.append(name, worst ? worst->member(name).number_or_nan() : kUndefined);
    }
  }
  if (!keys.empty()) cube.add_axis(std::move(keys));
  return cube;
}

}  // namespace

void add_agreement(Section& section, const std::vector<JudgedTensors>& judged) {
  const Cube cube = agreement_cube(judged);
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
  const JsonField root = document.root(), dump = root.member("dump");
  Section section(id, fmt::format("Another implementation: {}", dump.member("path").text()));
  section.lines.push_back(fmt::format("{} by {} at a budget of {}: {}.", dump.member("policy").text(),
                                      dump.member("backend").text(), dump.member("budget").text(),
                                      root.member("verdict").text()));
  add_agreement(section, {{brief(dump.member("policy").text()), dump.member("budget").text(),
                           dump.member("backend").text(), root.member("tensors").items(true)}});
  return {{std::move(section)}, {}, origin_facts(root.member("trace"))};
}

}  // namespace kvbound::sim
