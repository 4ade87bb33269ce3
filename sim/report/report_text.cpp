#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/magnitude.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/summary.hpp>
#include <kvbound/traces/messages.hpp>

#include "agreement_report.hpp"
#include "replay_plot.hpp"
#include "report.hpp"
#include "table.hpp"

namespace kvbound::sim {
namespace {

std::string percent(int64_t part, int64_t whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole))
                   : "-";
}

// The run that a cell of the table describes, with its context.
struct Subject {
  const RunResult& run;
  const Summary& summary;
  const ReplayResult& result;
  const std::optional<Policy>& base;
};

std::string improved(const Subject& subject) {
  const RunResult* base = base_of(subject.run, subject.result, subject.base);
  if (!base) return "-";
  const ImprovedHeads heads = improved_heads(subject.run, *base);
  return percent(heads.improved, heads.heads);
}

// The runs that a column applies to.
enum class About { all, merges, later_queries };

struct Column {
  std::string name;  // empty: in every table
  std::string heading;
  std::string (*cell)(const Subject&);
  About about = About::all;
};

bool says_something(About about, const Summary& summary) {
  return about == About::all ||
         (about == About::merges ? summary.merges.has_value() : summary.later.has_value());
}

template <Mean Summary::*mean>
std::string mean_cell(const Subject& subject) {
  return cell((subject.summary.*mean).value());
}

template <auto LaterSummary::*figures>
std::string later_cell(const Subject& subject) {
  return subject.summary.later ? cell(((*subject.summary.later).*figures).value()) : "-";
}

template <auto MergeSummary::*figures>
std::string merge_cell(const Subject& subject) {
  return subject.summary.merges ? cell(((*subject.summary.merges).*figures).value()) : "-";
}

// The share of evicted entries that found a target to merge with.
std::string found_target(const Subject& subject) {
  if (!subject.summary.merges) return "-";
  const MergeCounts& counts = subject.summary.merges->counts;
  return percent(counts.merged, counts.leaving);
}

// The share of clusters whose ZIP scale is exceptional: singular, negative or far from 1.
template <int64_t MergeCounts::*count>
std::string zip_share(const Subject& subject) {
  const bool zips = rules_of(subject.run.run.policy.policy.merge).key == MergedKey::zip;
  if (!subject.summary.merges || !zips) return "-";
  const MergeCounts& counts = subject.summary.merges->counts;
  return percent(counts.*count, counts.clusters);
}

std::string lossy(const Subject& subject) {
  if (!subject.summary.merges || subject.summary.merges->lossless == 0) return "-";
  return std::to_string(subject.summary.merges->violations);
}

std::string predictable(const Subject& subject) {
  if (!subject.summary.later) return "-";
  return percent(subject.summary.later->predictable, subject.summary.later->predicted);
}

std::string later_violations(const Subject& subject) {
  if (!subject.summary.later || subject.summary.later->joint_bound.values.empty()) return "-";
  return std::to_string(subject.summary.later->violations);
}

std::vector<Column> all_columns(int64_t recall_of) {
  using S = const Subject&;
  return {
      {"", "policy", [](S s) { return s.run.run.policy.label; }},
      {"", "budget", [](S s) { return to_string(s.run.run.budget); }},
      {"entries", "entries", [](S s) { return std::to_string(s.run.entries); }},
      {"backend", "backend", [](S s) { return s.run.run.backend; }},
      {"perturbation", "L", mean_cell<&Summary::perturbation>},
      {"relative", "relative L", mean_cell<&Summary::relative>},
      {"layer-relative", "layer rel. L", mean_cell<&Summary::layer_relative>},
      {"bound", "bound", mean_cell<&Summary::bound>},
      {"tightness", "L/bound", mean_cell<&Summary::tightness>},
      {"max-tightness", "max L/bound",
       [](S s) { return cell(s.summary.tightest ? std::optional(s.summary.max_tightness) : std::nullopt); }},
      {"violations", "violations",
       [](S s) { return s.summary.merges ? "-" : std::to_string(s.summary.violations); }},
      {"kept-mass", "kept mass", mean_cell<&Summary::kept_mass>},
      {"recall", fmt::format("recall@{}", recall_of), mean_cell<&Summary::recall>},
      {"stage-one", "stage 1 <= 1/2",
       [](S s) { return percent(s.summary.stage_one_low, s.summary.stage_one_mass.count); }},
      {"improved-heads", "improved heads", improved},
      {"merge-perturbation", "merge change", merge_cell<&MergeSummary::perturbation>, About::merges},
      {"lossy", "lossy", lossy, About::merges},
      {"found-target", "found target", found_target, About::merges},
      {"zip-singular", "ZIP singular", zip_share<&MergeCounts::singular>, About::merges},
      {"zip-negative", "negative", zip_share<&MergeCounts::negative>, About::merges},
      {"zip-far", "far", zip_share<&MergeCounts::far>, About::merges},
      {"group-merged", "group merged", merge_cell<&MergeSummary::cluster_merged>, About::later_queries},
      {"group-evicted", "evicted", merge_cell<&MergeSummary::cluster_evicted>, About::later_queries},
      {"group-floor", "floor", merge_cell<&MergeSummary::cluster_floor>, About::later_queries},
      {"later-perturbation", "later change", later_cell<&LaterSummary::perturbation>, About::later_queries},
      {"predictable", "epsilon < 1", predictable, About::later_queries},
      {"later-bound", "KKV-5", later_cell<&LaterSummary::bound>, About::later_queries},
      {"later-shared-bound", "KKV-5'", later_cell<&LaterSummary::shared_bound>, About::later_queries},
      {"later-joint-bound", "KKV-5-joint", later_cell<&LaterSummary::joint_bound>, About::later_queries},
      {"later-violations", "later violations", later_violations, About::later_queries},
      {"sag", "sag", later_cell<&LaterSummary::sag>, About::later_queries},
  };
}

// The columns of the table: those without a name, and those named, if they apply to some run.
std::vector<Column> chosen_columns(const std::vector<std::string>& names,
                                   const std::vector<Summary>& summaries, int64_t recall_of) {
  std::vector<Column> columns = all_columns(recall_of);
  std::erase_if(columns, [&](const Column& column) {
    const bool named = column.name.empty() || std::ranges::find(names, column.name) != names.end();
    return !named || std::ranges::none_of(summaries, [&](const Summary& summary) {
      return says_something(column.about, summary);
    });
  });
  return columns;
}

std::string runs_table(const Report& report, const std::optional<Policy>& base, const TextStyle& style,
                       const std::vector<std::string>& names) {
  const ReplayResult& result = report.result;
  std::vector<Summary> summaries;
  for (const RunResult& run : result.runs) summaries.push_back(summarise(run, result.scope));
  const std::vector<Column> columns = chosen_columns(names, summaries, result.scope.recall_of);
  std::vector<TableRow> rows(1);
  for (const Column& column : columns) rows.front().push_back(column.heading);
  for (size_t r = 0; r < summaries.size(); ++r) {
    TableRow& row = rows.emplace_back();
    for (const Column& column : columns)
      row.push_back(column.cell({result.runs[r], summaries[r], result, base}));
  }
  const auto alarming = [](const std::string& heading, const std::string& cell) {
    const bool counts_violations =
        heading == "violations" || heading == "lossy" || heading == "later violations";
    return counts_violations && cell != "0" && cell != "-";
  };
  return table(rows, {.text = style, .alarming = alarming});
}

// A table of how runs on other backends agree with the reference; empty if no run was compared with it.
std::string agreement_table(const std::vector<RunResult>& runs, const TextStyle& style) {
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
  return rows.size() > 1 ? table(rows, {.text = style, .alarming = alarming}) + "\n" : "";
}

const OperationTimes::Entry* find(const OperationTimes& times, const std::string& operation) {
  const auto found = std::ranges::find(times.entries(), operation, &OperationTimes::Entry::operation);
  return found == times.entries().end() ? nullptr : &*found;
}

// The sum over a backend's runs.
double total(const ReplayResult& result, const std::string& backend, double RunResult::*seconds) {
  double sum = 0;
  for (const RunResult& run : result.runs) {
    if (run.run.backend == backend) sum += run.*seconds;
  }
  return sum;
}

// A table of the time of all compressions and decode steps on every backend, then of each operation's; a dash where it was
// not measured or a backend does not have the operation, such as upload.
std::string times_table(const ReplayResult& result, const TextStyle& style) {
  const std::vector<BackendTimes>& times = result.times;
  std::vector<std::string> operations;
  TableRow headings{"time, all layers and runs"};
  for (const BackendTimes& backend : times) {
    headings.push_back(backend.backend);
    for (const OperationTimes::Entry& entry : backend.operations.entries()) {
      if (std::ranges::find(operations, entry.operation) == operations.end())
        operations.push_back(entry.operation);
    }
  }
  TableRow compressions{"compress"}, steps{"steps"};
  for (const BackendTimes& backend : times) {
    compressions.push_back(duration_text(total(result, backend.backend, &RunResult::compress_seconds)));
    steps.push_back(duration_text(total(result, backend.backend, &RunResult::step_seconds)));
  }
  std::vector<TableRow> rows{headings, compressions, steps};
  for (const std::string& operation : operations) {
    TableRow row{operation};
    for (const BackendTimes& backend : times) {
      const OperationTimes::Entry* entry = find(backend.operations, operation);
      row.push_back(entry ? duration_text(entry->seconds) : "-");
    }
    rows.push_back(row);
  }
  return table(rows, {.text = style, .alarming = {}});
}

}  // namespace

std::vector<std::string> column_names() {
  std::vector<std::string> names;
  for (const Column& column : all_columns(0)) {
    if (!column.name.empty()) names.push_back(column.name);
  }
  return names;
}

std::string text_report(const Report& report, const std::optional<Policy>& base, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  const ReplayResult& result = report.result;
  const traces::TraceInfo& info = result.trace;
  std::string text = fmt::format(
      "{}\n  model {}\n  {} of {} layers, {} query heads on {} KV heads, head_dim {}, model_dim {}, {} prompt tokens, "
      "{} of {} decode steps, {}\n\n",
      one_line(info.path), traces::printable(info.model, traces::kMostQuoted), result.scope.layers.size(),
      info.layers, info.shape.query_heads, info.shape.kv_heads, info.shape.head_dim, info.shape.model_dim,
      info.prompt_tokens, result.scope.steps, info.decode_tokens, name(info.storage));
  text += runs_table(report, base, style, columns) + "\n";
  text += agreement_table(result.runs, style);
  if (result.times.size() > 1) text += times_table(result, style) + "\n";
  std::vector<std::string> told;
  for (const RunResult& run : result.runs) {
    const std::string& label = run.run.policy.label;
    if (std::ranges::find(told, label) != told.end()) continue;
    told.push_back(label);
    text += fmt::format("  {} = {}\n", label, canonical(run.run.policy.policy));
  }
  if (style.plot) text += replay_plots(report, base, style);
  return text;
}

}  // namespace kvbound::sim
