#include "check_report.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/options/command_line.hpp>

#include "environment.hpp"
#include "json.hpp"
#include "unlikely.hpp"

namespace kvbound::sim {

std::vector<TensorSummary> CheckReport::summaries() const {
  std::vector<TensorSummary> all;
  for (const JudgedTensor& tensor : tensors)
    all.push_back({tensor.agreement, tensor.agreement.worst ? &tensor : nullptr});
  return all;
}

std::string text_report(const CheckReport& report, const TextStyle& style) {
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
  std::vector<TableRow> rows{agreement_headings()};
  for (const TensorSummary& summary : report.summaries()) rows.push_back(agreement_row(summary));
  const auto alarming = [](const std::string&, const std::string& cell) {
    return cell == word(Verdict::differs);
  };
  return text + "\n" + table(rows, {.left_columns = 2, .text = style, .alarming = alarming});
}

std::string json_report(const CheckReport& report) {
  Json document{{"schema", "kvbound-check-1"}};
  document.update(fields_of(environment()));
  document["seed"] = nullptr;  // nothing is drawn at random
  document["operation"] = report.operation;
  document["path"] = report.path;
  document["declared"] = report.declared ? to_json(*report.declared) : Json();
  document["verdict"] = word(report.verdict());
  document["unlikely"] = to_json(ChanceVerdict(report.tensors));
  for (Json& found : document["unlikely"]["found"]) {
    found.erase("layer");
    found.erase("other_layers");
  }
  document["figures"] = Json::object();
  for (const CheckFigure& figure : report.figures) document["figures"][figure.name] = figure.value;
  document["not_read"] = report.not_read;
  document["tensors"] = Json::array();
  for (const JudgedTensor& tensor : report.tensors) {
    document["tensors"].push_back(to_json(tensor));
    document["tensors"].back().erase("layer");
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
