#include "check_against_report.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/diff/agreement_figures.hpp>
#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/list_cube.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/layer_list.hpp>

namespace kvbound::sim {
namespace {

// "sequences 0-3,7"; of long lists "1000 rows, the first 17"
std::string listed(const std::string& name, const std::vector<int64_t>& cases) {
  constexpr size_t kMost = 60;
  const std::string list = traces::layer_list(cases), plural = cases.size() == 1 ? "" : "s";
  if (list.size() > kMost)
    return fmt::format("{} {}{}, the first {}", cases.size(), name, plural, cases.front());
  return fmt::format("{}{} {}", name, plural, list);
}

// Which cases are compared with which: "sequences 0-31", "sequence 7 of A with 0 of B, 9 with 1".
std::string pairs_text(const CheckAgainstReport& report) {
  constexpr size_t kMost = 5;
  const auto& pairs = report.cases.pairs;
  if (std::ranges::all_of(pairs, [](const auto& pair) { return pair.first == pair.second; })) {
    std::vector<int64_t> cases;
    for (const auto& [own, other] : pairs) cases.push_back(own);
    const bool all = report.cases.only_a.empty() && report.cases.only_b.empty();
    return listed(report.case_name, cases) + (all ? "" : " of both");
  }
  std::vector<std::string> parts;
  for (const auto& [own, other] : std::span(pairs).first(std::min(kMost, pairs.size())))
    parts.push_back(fmt::format("{} {} of A with {} of B", report.case_name, own, other));
  if (pairs.size() > kMost) parts.push_back(fmt::format("{} more", pairs.size() - kMost));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Tensors of one file that the other lacks, or has in another unit.
std::vector<std::string> only_tensors(const CheckReport& report, const ComparedRows& compared) {
  std::vector<std::string> names;
  for (const JudgedTensor& tensor : report.tensors) {
    const std::string& name = tensor.agreement.tensor;
    const auto& both = compared.layers.front().rows.tensors;
    if (std::ranges::find(both, name, &TensorRows::tensor) == both.end()) names.push_back(name);
  }
  return names;
}

// "  only in A: lse; sequences 0-2,4: judged, but not compared"
std::string only_text(char file, const CheckAgainstReport& report, const CheckReport& own,
                      const std::vector<int64_t>& cases) {
  std::vector<std::string> parts;
  const std::vector<std::string> tensors = only_tensors(own, report.compared);
  if (!tensors.empty() && !report.cases.pairs.empty())
    parts.push_back(fmt::format("{}", fmt::join(tensors, ", ")));
  if (!cases.empty()) parts.push_back(listed(report.case_name, cases));
  if (parts.empty()) return "";
  return fmt::format("  only in {}: {}: judged, but not compared\n", file, fmt::join(parts, "; "));
}

// Which KV heads' caches differ.
std::string apart_text(const ComparedRows& compared) {
  std::vector<int64_t> heads;
  for (const ApartHead& head : compared.layers.front().rows.apart) heads.push_back(head.kv_head);
  if (heads.empty()) return "";
  return fmt::format("  {} hold different entries: what follows from that is of another cache\n",
                     listed("KV head", heads));
}

std::string file_text(char file, const CheckReport& report) {
  if (!report.declared) return "";
  return fmt::format("  {}: {}\n", file, report.declared->text());
}

Json facts_of(const CheckReport& report, const std::vector<int64_t>& only, const ComparedRows& compared) {
  return {{"path", report.path},
          {"declared", report.declared ? declared_facts(*report.declared) : Json()},
          {"verdict", word(report.verdict())},
          {"not_read", report.not_read},
          {"only", {{"tensors", only_tensors(report, compared)}, {"cases", only}}}};
}

}  // namespace

CheckAgainstReport check_against_report(const CheckOperation& operation, const CheckedFile& a,
                                        const CheckedFile& b, bool identical) {
  if (!a.result.cases)
    throw UsageError(fmt::format("--against is not of {}, whose results are exact", operation.name));
  CheckComparison comparison = compare_results(a.result, b.result);
  return {check_report(operation, a.file, a.result),
          check_report(operation, b.file, b.result),
          a.result.cases->name,
          std::move(comparison.cases),
          {{{-1, std::move(comparison.rows)}}, identical}};
}

Part check_against_part(const CheckAgainstReport& report) {
  Part part{{{"operation", report.a.operation},
             {"a", facts_of(report.a, report.cases.only_a, report.compared)},
             {"b", facts_of(report.b, report.cases.only_b, report.compared)},
             {"case", report.case_name},
             {"identical_required", report.compared.identical},
             {"verdict", word(report.verdict())}},
            rows_cubes(report.compared),
            {"tensors"}};
  using Pair = std::pair<int64_t, int64_t>;
  part.cubes.push_back(list_cube<Pair>(
      "pairs", "pair",
      {{count_figure("case_a", "of A"), [](const Pair& pair) { return static_cast<double>(pair.first); }}},
      {{count_figure("case_b", "the case of B with the same inputs and settings"),
        [](const Pair& pair) { return static_cast<double>(pair.second); }}},
      report.cases.pairs));
  return part;
}

std::string text_report(const CheckAgainstReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  std::string text =
      sentence({report.a.path, report.a.verdict()}, {report.b.path, report.b.verdict()}, report.compared);
  text += fmt::format("\n  {}\n", report.a.operation) + file_text('A', report.a) + file_text('B', report.b);
  if (report.cases.pairs.empty())
    text += fmt::format("  no {} of A has the inputs and settings of one of B\n", report.case_name);
  else
    text += fmt::format("  compared: {}\n", pairs_text(report));
  text += only_text('A', report, report.a, report.cases.only_a);
  text += only_text('B', report, report.b, report.cases.only_b);
  return text + apart_text(report.compared) + rows_table(part, style, columns);
}

}  // namespace kvbound::sim
