#include "check_report.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/diff/agreement_figures.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/options/command_line.hpp>

namespace kvbound::sim {

std::vector<TensorSummary> CheckReport::summaries() const {
  std::vector<TensorSummary> all;
  for (const JudgedTensor& tensor : tensors)
    all.push_back({tensor.agreement, tensor.agreement.worst ? &tensor : nullptr});
  return all;
}

CheckReport check_report(const CheckOperation& operation, const CheckFile& file, const CheckResult& result) {
  CheckReport report{std::string(operation.name),
                     file.path(),
                     {},
                     result.declared,
                     result.figures,
                     file.not_read(operation.known_in_file())};
  for (const TensorAgreement& tensor : result.tensors) report.tensors.push_back({-1, tensor});
  return report;
}

Part check_part(const CheckReport& report) {
  const ChanceVerdict chance(report.tensors);
  AgreementCubes cubes;
  cubes.add({}, report.tensors, report.summaries());
  Part part{{{"operation", report.operation},
             {"path", report.path},
             {"declared", report.declared ? declared_facts(*report.declared) : nlohmann::ordered_json()},
             {"verdict", word(report.verdict())},
             {"chance", chance_facts(chance)},
             {"figures", nlohmann::ordered_json::object()},
             {"not_read", report.not_read}},
            cubes.cubes(),
            {"tensors"}};
  for (const CheckFigure& figure : report.figures) part.facts["figures"][figure.name] = figure.value;
  part.cubes.push_back(unlikely_cube(chance));
  return part;
}

std::string text_report(const CheckReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  std::string text = fmt::format("{}: {}\n", one_line(report.path), report.operation);
  if (report.declared) {
    text += fmt::format("  {}\n", report.declared->text());
  }
  for (const CheckFigure& figure : report.figures)
    text += fmt::format("  {}: {}\n", figure.name, figure.value);
  if (!report.not_read.empty())
    text += fmt::format(
        "  not read: {}{}\n",
        fmt::join(report.not_read.begin(),
                  report.not_read.begin() + std::min<std::ptrdiff_t>(10, std::ssize(report.not_read)), ", "),
        report.not_read.size() > 10 ? ", ..." : "");
  return text + "\n" + cube_table(*part.find("agreement"), style, columns);
}

}  // namespace kvbound::sim
