#include "diff_report.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/layer_list.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/messages.hpp>

#include "environment.hpp"
#include "json.hpp"
#include "report.hpp"
#include "table.hpp"

namespace kvbound::sim {
namespace {

Json arithmetic_json(const reference::Arithmetic& arithmetic) {
  return {{"unit", arithmetic.unit},         {"exponential", arithmetic.exponential},
          {"weights", arithmetic.weights},   {"weights_floor", arithmetic.weights_floor},
          {"partials", arithmetic.partials}, {"partials_floor", arithmetic.partials_floor}};
}

}  // namespace

std::string implementation_text(const DumpInfo& dump) {
  return fmt::format("backend {}; {}", traces::printable(dump.backend), dump.declared.text());
}

std::string extent_text(const DiffReport& report) {
  return fmt::format("{} of {} layers, {} of {} decode steps", report.dump.layers.size(), report.trace.layers,
                     report.dump.steps, report.trace.decode_tokens);
}

Json dump_json(const DiffReport& report) {
  const DumpInfo& dump = report.dump;
  Json json{{"path", report.dump_path},
            {"policy", canonical(dump.policy)},
            {"budget", to_string(dump.budget)},
            {"entries", dump.entries},
            {"backend", dump.backend}};
  json.update(to_json(dump.declared));
  json.update({{"layers", dump.layers}, {"steps", dump.steps}, {"tensors", dump.tensors}});
  return json;
}

std::string text_report(const DiffReport& report, const TextStyle& style) {
  const DumpInfo& dump = report.dump;
  std::string text = fmt::format("{}\n  {}\n  budget {}, {} entries per KV head; {}\n  against {}: {}, {}\n",
                                 one_line(report.dump_path), canonical(dump.policy), to_string(dump.budget),
                                 dump.entries, implementation_text(dump), one_line(report.trace.path),
                                 extent_text(report), name(report.trace.storage));
  if (dump.tensors.empty()) return text + "  no tensors\n";
  std::vector<TensorSummary> all = report.summaries();
  std::stable_partition(all.begin(), all.end(),
                        [](const TensorSummary& summary) { return !summary.total.agrees(); });
  std::vector<TableRow> rows{agreement_headings()};
  for (const TensorSummary& summary : all) rows.push_back(agreement_row(summary));
  const auto alarming = [](const std::string&, const std::string& cell) {
    return cell == word(Verdict::differs);
  };
  text += "\n" + table(rows, {.left_columns = 2, .text = style, .alarming = alarming});
  std::string notes;
  for (const TensorSummary& summary : all) {
    const std::string diagnosis = summary.worst ? diagnosis_text(summary.worst->agreement) : "";
    if (diagnosis.empty()) continue;
    notes += fmt::format("  layers.{}.{}: {}\n", summary.worst->layer, summary.total.tensor, diagnosis);
  }
  const ChanceVerdict chance = report.by_chance();
  for (const UnlikelyOutput& unlikely : chance.found) notes += "  " + text_of(unlikely) + "\n";
  return notes.empty() ? text : text + "\n" + notes;
}

std::string json_report(const DiffReport& report) {
  Json document{{"schema", "kvbound-diff-1"}};
  document.update(fields_of(environment()));
  document["seed"] = nullptr;  // nothing is drawn at random
  document["trace"] = trace_json(report.trace, report.trace_sha256);
  document["dump"] = dump_json(report);
  document["arithmetic"] = arithmetic_json(report.dump.declared.arithmetic());
  document["verdict"] = word(report.verdict());
  document["unlikely"] = to_json(report.by_chance());
  document["tensors"] = Json::array();
  for (const JudgedTensor& tensor : report.tensors) document["tensors"].push_back(to_json(tensor));
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
