#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include <kvbound/traces/messages.hpp>

#include "agreement_report.hpp"
#include "bench.hpp"
#include "command_line.hpp"
#include "policy.hpp"
#include "report.hpp"
#include "summary.hpp"
#include "table.hpp"

namespace kvbound::sim {
namespace {

std::string figure(std::optional<double> value) { return value ? fmt::format("{:#.4g}", *value) : "-"; }

std::string percent(int64_t part, int64_t whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole))
                   : "-";
}

TableRow table_row(const RunResult& run, const ReplayResult& result, const std::optional<Policy>& base) {
  const Summary summary = summarise(run, result.scope);
  const RunResult* base_run = base_of(run, result, base);
  const ImprovedHeads heads = base_run ? improved_heads(run, *base_run) : ImprovedHeads{};
  return {run.run.policy.label,
          to_string(run.run.budget),
          std::to_string(run.entries),
          run.run.backend,
          figure(summary.perturbation.value()),
          figure(summary.relative.value()),
          figure(summary.layer_relative.value()),
          figure(summary.bound.value()),
          figure(summary.tightness.value()),
          figure(summary.tightest ? std::optional(summary.max_tightness) : std::nullopt),
          std::to_string(summary.violations),
          figure(summary.kept_mass.value()),
          percent(summary.stage_one_low, summary.stage_one_mass.count),
          base_run ? percent(heads.improved, heads.heads) : "-"};
}

const TableRow& headings() {
  static const TableRow row{"policy",     "budget",       "entries",        "backend",       "L",
                            "relative L", "layer rel. L", "bound",          "L/bound",       "max L/bound",
                            "violations", "kept mass",    "stage 1 <= 1/2", "improved heads"};
  return row;
}

// How every run on another backend agrees with the reference; empty if none was held against it.
std::string agreement_table(const std::vector<RunResult>& runs, bool colour) {
  TableRow headings{"agreement with the reference", "budget", "backend"};
  std::ranges::copy(agreement_headings(), std::back_inserter(headings));
  std::vector<TableRow> rows{headings};
  for (const RunResult& run : runs) {
    if (!run.agreement) continue;
    for (const TensorSummary& summary : summaries(*run.agreement)) {
      TableRow row{run.run.policy.label, to_string(run.run.budget), run.run.backend};
      std::ranges::copy(agreement_row(summary), std::back_inserter(row));
      rows.push_back(row);
    }
  }
  const auto alarming = [](const std::string&, const std::string& cell) {
    return cell == word(Verdict::differs);
  };
  return rows.size() > 1 ? table(rows, {.colour = colour, .alarming = alarming}) + "\n" : "";
}

const OperationTimes::Entry* find(const OperationTimes& times, const std::string& operation) {
  const auto found = std::ranges::find(times.entries(), operation, &OperationTimes::Entry::operation);
  return found == times.entries().end() ? nullptr : &*found;
}

// An operation's time on every backend; a backend that has no such operation, such as an upload, shows a dash.
std::string times_table(const std::vector<BackendTimes>& times, bool colour) {
  std::vector<std::string> operations;
  TableRow headings{"time, all layers and runs"};
  for (const BackendTimes& backend : times) {
    headings.push_back(backend.backend);
    for (const OperationTimes::Entry& entry : backend.operations.entries()) {
      if (std::ranges::find(operations, entry.operation) == operations.end())
        operations.push_back(entry.operation);
    }
  }
  std::vector<TableRow> rows{headings};
  for (const std::string& operation : operations) {
    TableRow row{operation};
    for (const BackendTimes& backend : times) {
      const OperationTimes::Entry* entry = find(backend.operations, operation);
      row.push_back(entry ? duration_text(entry->seconds) : "-");
    }
    rows.push_back(row);
  }
  return table(rows, {.colour = colour, .alarming = {}});
}

}  // namespace

std::string text_report(const Report& report, const std::optional<Policy>& base, bool colour) {
  const ReplayResult& result = report.result;
  const traces::TraceInfo& info = result.trace;
  std::string text = fmt::format(
      "{}\n  model {}\n  {} of {} layers, {} query heads on {} KV heads, head_dim {}, model_dim {}, {} "
      "prompt tokens, "
      "{} of {} decode steps, {}\n\n",
      one_line(info.path), traces::printable(info.model, 200), result.scope.layers.size(), info.layers,
      info.shape.query_heads, info.shape.kv_heads, info.shape.head_dim, info.shape.model_dim,
      info.prompt_tokens, result.scope.steps, info.decode_tokens, name(info.storage));
  std::vector<TableRow> rows{headings()};
  for (const RunResult& run : result.runs) rows.push_back(table_row(run, result, base));
  const auto alarming = [](const std::string& heading, const std::string& cell) {
    return heading == "violations" && cell != "0";
  };
  text += table(rows, {.colour = colour, .alarming = alarming}) + "\n";
  text += agreement_table(result.runs, colour);
  if (result.times.size() > 1) text += times_table(result.times, colour) + "\n";
  std::vector<std::string> told;
  for (const RunResult& run : result.runs) {
    const std::string& label = run.run.policy.label;
    if (std::ranges::find(told, label) != told.end()) continue;
    told.push_back(label);
    text += fmt::format("  {} = {}\n", label, canonical(run.run.policy.policy));
  }
  return text;
}

}  // namespace kvbound::sim
