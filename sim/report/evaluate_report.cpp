#include "evaluate_report.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/evaluate/task_result_json.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/messages.hpp>

#include <kvbound/sim/figures/csv.hpp>
#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/plot.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include "environment.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kBytesUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};

std::string byte_cell(double bytes) {
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kBytesUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.3g} {}", bytes, kBytesUnits[unit]);
}

std::string share_cell(double share) { return fmt::format("{:.1f} %", 100 * share); }

// A mean and its standard error.
TableRow with_error(const std::optional<Estimate>& estimate) {
  if (!estimate) return {"-", "-"};
  const auto error = estimate->standard_error;
  return {cell(estimate->mean), error ? fmt::format("{:.1g}", *error) : "-"};
}

TableRow& operator+=(TableRow& row, TableRow cells) {
  for (std::string& cell : cells) row.push_back(std::move(cell));
  return row;
}

std::string interval_cell(const std::optional<Interval>& interval) {
  return interval ? fmt::format("{:.3g} .. {:.3g}", interval->low, interval->high) : "-";
}

std::optional<double> less_from_one(std::optional<double> share) {
  return share ? std::optional(1 - *share) : std::nullopt;
}

// A policy's name and budget.
std::string policy_cell(const EvaluateReport& report, size_t run) {
  return report.result.options.runs[run].policy.label;
}
std::string budget_cell(const EvaluateReport& report, size_t run) {
  return to_string(report.result.options.runs[run].budget);
}

// A kind, and what the report says of it. There may be as many kinds as tasks.
struct KindParts {
  const KindSummary& kind;
  std::vector<const RunSummary*> runs;
  std::vector<const DepthSummary*> depths;
  std::vector<const Correlation*> correlations;
};

// In the order of the kinds. Depths are of answers.
std::vector<KindParts> parts_of(const EvaluateReport& report) {
  std::vector<KindParts> all;
  std::map<std::pair<std::string_view, bool>, size_t> numbers;
  for (const KindSummary& kind : report.summary.kinds) {
    numbers[{kind.kind, kind.answers}] = all.size();
    all.push_back({kind, {}, {}, {}});
  }
  for (const RunSummary& run : report.summary.runs)
    all[numbers.at({run.kind, run.answers})].runs.push_back(&run);
  for (const DepthSummary& part : report.summary.depths)
    all[numbers.at({part.kind, true})].depths.push_back(&part);
  for (const Correlation& one : report.correlations)
    all[numbers.at({one.kind, one.answers})].correlations.push_back(&one);
  return all;
}

// What became of the model: a row per run.
std::string outcome_table(const EvaluateReport& report, const KindParts& parts, const TextStyle& style) {
  const KindSummary& kind = parts.kind;
  const bool compares = report.base.has_value();
  TableRow headings{"policy", "budget", "KL", "s.e.", "dNLL", "s.e.", "top-1"};
  if (kind.answers) headings += {"exact", "tokens"};
  if (compares) headings += {"KL - base", "95 %"};
  headings += {"hidden", "entries", "stored"};
  std::vector<TableRow> rows{headings};
  for (const RunSummary* run : parts.runs) {
    TableRow row{policy_cell(report, run->run), budget_cell(report, run->run)};
    row += with_error(run->kl);
    row += with_error(run->delta_nll);
    row += {share_cell(run->agreement.mean)};
    if (kind.answers) row += {fmt::format("{}/{}", run->exact, kind.tasks), share_cell(run->hits->mean)};
    if (compares) {
      const auto& less = run->kl_less_base;
      row += {less ? cell(less->mean) : "-", less ? interval_cell(less->interval) : "-"};
    }
    row += {cell(run->hidden_error.back()), fmt::format("{:.0f}", run->entries), byte_cell(run->bytes)};
    rows.push_back(std::move(row));
  }
  return table(rows, {.left_columns = 2, .text = style, .alarming = {}});
}

// What is to predict it: a row per run.
std::string open_loop_table(const EvaluateReport& report, const KindParts& parts, const TextStyle& style) {
  std::vector<TableRow> rows{{"policy", "budget", "L", "layer rel.", "theta", "lost mass", "recall"}};
  for (const RunSummary* run : parts.runs) {
    const OpenLoop& figures = run->open_loop;
    rows.push_back({policy_cell(report, run->run), budget_cell(report, run->run), cell(figures.perturbation),
                    cell(figures.layer_relative), cell(figures.bound), cell(less_from_one(figures.kept_mass)),
                    cell(figures.recall)});
  }
  return "\nOpen loop, on the steps of the sequence with the full cache\n\n" +
         table(rows, {.left_columns = 2, .text = style, .alarming = {}});
}

// KL by policy and budget; runs of one policy side by side.
std::string divergence_plot(const EvaluateReport& report, const KindParts& parts, const TextStyle& style) {
  std::vector<std::string> told;
  std::vector<Bar> bars;
  for (const RunSummary* first : parts.runs) {
    const std::string policy = policy_cell(report, first->run);
    if (std::ranges::find(told, policy) != told.end()) continue;
    told.push_back(policy);
    for (const RunSummary* run : parts.runs) {
      if (policy_cell(report, run->run) == policy)
        bars.push_back({policy, budget_cell(report, run->run), run->kl.mean});
    }
  }
  return bar_chart(fmt::format("KL by budget, {}", traces::printable(parts.kind.kind)), bars, style);
}

std::string heading_of(const KindSummary& kind) {
  std::string text = fmt::format("\n{}: {} task{}, full cache: NLL {} a token", traces::printable(kind.kind),
                                 kind.tasks, kind.tasks == 1 ? "" : "s", cell(kind.full_nll));
  if (kind.answers) {
    text += fmt::format(", {}/{} answers exact, {} of their tokens", kind.full_exact, kind.tasks,
                        share_cell(kind.full_hits));
  }
  return text + "\n\n";
}

// Exact answers by depth: a row per run, a column per depth.
std::string depth_table(const EvaluateReport& report, const KindParts& parts, const TextStyle& style) {
  TableRow headings{"policy", "budget"};
  std::vector<TableRow> rows;
  for (const DepthSummary* part : parts.depths) {
    if (!part->run) headings.push_back("depth " + shortest(part->depth));
    const TableRow start = part->run
                               ? TableRow{policy_cell(report, *part->run), budget_cell(report, *part->run)}
                               : TableRow{"full cache", ""};
    const bool goes_on = !rows.empty() && std::equal(start.begin(), start.end(), rows.back().begin());
    if (!goes_on) rows.push_back(start);
    rows.back().push_back(fmt::format("{}/{}", part->exact, part->tasks));
  }
  if (rows.empty()) return "";
  rows.insert(rows.begin(), headings);
  return "\nExact answers by the needle's depth\n\n" +
         table(rows, {.left_columns = 2, .text = style, .alarming = {}});
}

// A row per indicator, columns per budget; of the last one, which is all budgets pooled if there are several, also the
// correlation of means.
std::string correlation_table(const std::vector<const Correlation*>& correlations, const TextStyle& style) {
  std::vector<TableRow> rows{{"indicator"}};
  for (size_t i = 0; i < correlations.size(); ++i) {
    const Correlation& found = *correlations[i];
    const bool first = i == 0 || correlations[i - 1]->indicator != found.indicator;
    const bool last = i + 1 == correlations.size() || correlations[i + 1]->indicator != found.indicator;
    if (first) rows.push_back({std::string(name(found.indicator))});
    if (rows.size() == 2) {
      rows.front() += {found.budget ? to_string(*found.budget) : "all", "s.e.", "pairs"};
      if (last) rows.front() += {"of means", "95 %"};
    }
    rows.back() += with_error(found.of_tasks);
    rows.back() += {found.pairs ? fmt::format("{:.0f} %", 100 * found.pairs->mean) : "-"};
    if (last) rows.back() += {cell(found.of_means), interval_cell(found.of_means_interval)};
  }
  return table(rows, {.left_columns = 1, .text = style, .alarming = {}});
}

// Nothing if no two runs could be ordered.
std::string correlation_text(const KindParts& parts, const TextStyle& style) {
  std::string text;
  for (const Outcome outcome : kOutcomes) {
    std::vector<const Correlation*> found;
    std::ranges::copy_if(parts.correlations, std::back_inserter(found),
                         [&](const Correlation* one) { return one->outcome == outcome; });
    if (std::ranges::none_of(found, [](const Correlation* one) { return one->policies > 1; })) continue;
    text += fmt::format(
        "\nDo these order the policies as {} does? Spearman's rank correlation of a task, pairs alike; other_half: the ceiling\n\n{}",
        outcome == Outcome::kl ? "KL" : "dNLL", correlation_table(found, style));
  }
  return text;
}

Json to_json(const std::optional<Interval>& interval) {
  return interval ? Json{{"low", json_number(interval->low)}, {"high", json_number(interval->high)}} : Json();
}

Json to_json(const std::optional<Estimate>& estimate) {
  if (!estimate) return {};
  return {{"mean", json_number(estimate->mean)},
          {"standard_error", json_number(estimate->standard_error)},
          {"interval", to_json(estimate->interval)},
          {"count", estimate->count}};
}

Json to_json(const KindSummary& kind) {
  Json json{{"kind", kind.kind},
            {"answers", kind.answers},
            {"tasks", kind.tasks},
            {"nll", json_number(kind.full_nll)}};
  json["hits"] = kind.answers ? json_number(kind.full_hits) : Json();
  json["exact"] = kind.answers ? Json(kind.full_exact) : Json();
  return json;
}

Json to_json(const RunSummary& run) {
  Json json{{"kind", run.kind},
            {"answers", run.answers},
            {"run", run.run},
            {"kl", to_json(run.kl)},
            {"nll", json_number(run.nll)},
            {"delta_nll", to_json(run.delta_nll)},
            {"agreement", to_json(run.agreement)},
            {"hits", to_json(run.hits)},
            {"exact", run.answers ? Json(run.exact) : Json()},
            {"kl_less_base", to_json(run.kl_less_base)},
            {"nll_less_base", to_json(run.nll_less_base)},
            {"hits_less_base", to_json(run.hits_less_base)},
            {"exact_less_base", to_json(run.exact_less_base)}};
  for (const OpenLoopFigure& one : kOpenLoopFigures) json[one.name] = json_number(run.open_loop.*one.figure);
  json.update({{"hidden_error", run.hidden_error},
               {"entries", run.entries},
               {"bytes", run.bytes},
               {"violations", run.violations}});
  return json;
}

Json to_json(const DepthSummary& part) {
  return {{"kind", part.kind},   {"run", part.run ? Json(*part.run) : Json()},
          {"depth", part.depth}, {"tasks", part.tasks},
          {"exact", part.exact}, {"hits", json_number(part.hits)}};
}

Json to_json(const Correlation& found) {
  return {{"kind", found.kind},
          {"answers", found.answers},
          {"outcome", name(found.outcome)},
          {"indicator", name(found.indicator)},
          {"budget", found.budget ? Json(to_string(*found.budget)) : Json()},
          {"policies", found.policies},
          {"of_tasks", to_json(found.of_tasks)},
          {"of_means", json_number(found.of_means)},
          {"of_means_interval", to_json(found.of_means_interval)},
          {"pairs", to_json(found.pairs)}};
}

Json task_json(const Task& task, const TaskResult& result) {
  Json json{{"id", task.id},
            {"kind", task.kind},
            {"depth", json_number(task.depth)},
            {"prompt_tokens", std::ssize(task.prompt)},
            {"compress_at", task.compress_at},
            {"steps", result.steps},
            {"answer", task.is_answer},
            {"target", task.target},
            {"prefill_seconds", result.prefill_seconds},
            {"decode_seconds", result.decode_seconds},
            {"full", {{"nll", result.full_nll}, {"top1", result.full_top1}}}};
  json["runs"] = Json::array();
  for (const RunFigures& run : result.runs) json["runs"].push_back(to_json(run));
  return json;
}

template <class Item>
Json list_of(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(to_json(item));
  return list;
}

Json model_json(const EvaluateReport& report) {
  const traces::ModelConfig& model = report.result.model;
  return {{"path", report.model_path},  {"sha256", report.model_sha256},    {"name", model.name},
          {"layers", model.layers},     {"query_heads", model.query_heads}, {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim}, {"model_dim", model.model_dim},     {"vocabulary", model.vocabulary}};
}

}  // namespace

std::string text_report(const EvaluateReport& report, const TextStyle& style) {
  const EvaluateOptions& options = report.result.options;
  const traces::ModelConfig& model = report.result.model;
  double prefill = 0, decode = 0;
  for (const TaskResult& task : report.result.results) {
    prefill += task.prefill_seconds;
    decode += task.decode_seconds;
  }
  std::string text = fmt::format(
      "{}\n  model {}\n  {} layers, {} query heads on {} KV heads; {} tasks, {}, {}; {:.1f} s of prefill, {:.1f} s of decoding\n",
      one_line(report.model_path), traces::printable(model.name, traces::kMostQuoted), model.layers,
      model.query_heads, model.kv_heads, report.result.tasks.size(), name(options.dtype),
      options.runs.front().backend, prefill, decode);
  for (const KindParts& parts : parts_of(report)) {
    text += heading_of(parts.kind) + outcome_table(report, parts, style);
    if (parts.kind.answers) text += depth_table(report, parts, style);
    text += open_loop_table(report, parts, style) + correlation_text(parts, style);
    if (style.plot) text += divergence_plot(report, parts, style);
  }
  return text;
}

std::string json_report(const EvaluateReport& report) {
  const EvaluateOptions& options = report.result.options;
  Json document{{"schema", "kvbound-evaluate-1"}};
  document.update(fields_of(environment()));
  document["seed"] = report.seed;
  document["resamples"] = report.resamples;
  document["model"] = model_json(report);
  document["tasks_file"] = {{"path", report.tasks_path}, {"sha256", report.tasks_sha256}};
  document["backend"] = options.runs.front().backend;
  document["dtype"] = name(options.dtype);
  document["window"] = options.window;
  document["recall_of"] = options.recall_of;
  document["step_limit"] = report.step_limit ? Json(*report.step_limit) : Json();
  document["base"] = report.base ? Json(canonical(*report.base)) : Json();
  document["runs"] = Json::array();
  for (const Run& run : options.runs) {
    document["runs"].push_back({{"policy", canonical(run.policy.policy)},
                                {"label", run.policy.label},
                                {"budget", to_string(run.budget)}});
  }
  document["kinds"] = list_of(report.summary.kinds);
  document["summaries"] = list_of(report.summary.runs);
  document["depths"] = list_of(report.summary.depths);
  document["correlations"] = list_of(report.correlations);
  document["tasks"] = Json::array();
  for (size_t i = 0; i < report.result.tasks.size(); ++i)
    document["tasks"].push_back(task_json(report.result.tasks[i], report.result.results[i]));
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string csv_report(const EvaluateReport& report) {
  std::string csv = "task,kind,depth,policy,budget,token,target,full_nll,nll,kl,full_top1,top1\n";
  for (size_t i = 0; i < report.result.tasks.size(); ++i) {
    const Task& task = report.result.tasks[i];
    const TaskResult& found = report.result.results[i];
    const std::string start = csv_field(task.id) + "," + csv_field(task.kind) + "," +
                              (task.depth ? shortest(*task.depth) : "") + ",";
    for (size_t r = 0; r < found.runs.size(); ++r) {
      const Run& run = report.result.options.runs[r];
      const std::string head =
          start + csv_field(canonical(run.policy.policy)) + "," + to_string(run.budget) + ",";
      for (size_t j = 0; j < task.target.size(); ++j) {
        csv += fmt::format("{}{},{},{},{},{},{},{}\n", head, j, task.target[j], shortest(found.full_nll[j]),
                           shortest(found.runs[r].nll[j]), shortest(found.runs[r].kl[j]), found.full_top1[j],
                           found.runs[r].top1[j]);
      }
    }
  }
  return csv;
}

}  // namespace kvbound::sim
