#include "check_against_report.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/layer_list.hpp>

#include "environment.hpp"
#include "json.hpp"

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

// Which cases are compared with which: "all 32 sequences", "sequence 7 of A with 0 of B, 9 with 1".
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

std::string only_text(char file, const std::string& name, const std::vector<int64_t>& cases) {
  if (cases.empty()) return "";
  return fmt::format("  only in {}: {}: judged, but not compared\n", file, listed(name, cases));
}

std::string file_text(char file, const CheckReport& report) {
  if (!report.declared) return "";
  return fmt::format("  {}: {}\n", file, report.declared->text());
}

Json to_json(const CheckReport& report, const std::vector<int64_t>& only) {
  return {{"path", report.path},
          {"declared", report.declared ? to_json(*report.declared) : Json()},
          {"verdict", word(report.verdict())},
          {"not_read", report.not_read},
          {"only", only}};
}

}  // namespace

std::string text_report(const CheckAgainstReport& report, const TextStyle& style) {
  std::string text =
      sentence({report.a.path, report.a.verdict()}, {report.b.path, report.b.verdict()}, report.compared);
  text += fmt::format("\n  {}\n", report.a.operation) + file_text('A', report.a) + file_text('B', report.b);
  if (report.cases.pairs.empty())
    text += fmt::format("  no {} of A was computed from the inputs of one of B\n", report.case_name);
  else
    text += fmt::format("  compared: {}\n", pairs_text(report));
  text += only_text('A', report.case_name, report.cases.only_a);
  text += only_text('B', report.case_name, report.cases.only_b);
  return text + rows_table(report.compared, style);
}

std::string json_report(const CheckAgainstReport& report) {
  Json document{{"schema", "kvbound-check-against-1"}};
  document.update(fields_of(environment()));
  document["seed"] = nullptr;  // nothing is drawn at random
  document["operation"] = report.a.operation;
  document["a"] = to_json(report.a, report.cases.only_a);
  document["b"] = to_json(report.b, report.cases.only_b);
  document["case"] = report.case_name;
  document["compared"] = report.cases.pairs;
  add_json(report.compared, report.verdict(), document);
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
