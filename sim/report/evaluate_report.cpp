#include "evaluate_report.hpp"

#include <numeric>

#include <fmt/format.h>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/evaluate/task_figures.hpp>
#include <kvbound/sim/figures/cube_slice.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/plot.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/messages.hpp>

#include "heads_text.hpp"

namespace kvbound::sim {
namespace {

// Answers of the kinds, one after the other, by their needles' depth.
class DepthTables {
 public:
  explicit DepthTables(const Cube& depths) : depths_(depths), kinds_(depths.axes[0]->keys[0].texts()) {}

  // The table of a kind of answers; empty if they have no depth.
  std::string next(const std::string& kind, const TextStyle& style) {
    std::vector<int64_t> places;
    for (; next_ < kinds_.size() && kinds_[next_] == kind; ++next_)
      places.push_back(static_cast<int64_t>(next_));
    if (places.empty()) return "";
    return "\nExact answers by the needle's depth\n\n" +
           cube_table(side_by_side(restricted(depths_, "depth", places), "depth", "depth"), style);
  }

 private:
  const Cube& depths_;
  const std::vector<std::string>& kinds_;
  size_t next_ = 0;
};

// Of the runs, but for the full cache.
std::string open_loop_table(const Cube& runs, const TextStyle& style) {
  std::vector<int64_t> compressed(static_cast<size_t>(runs.rows() - 1));
  std::iota(compressed.begin(), compressed.end(), 1);
  return "\nOpen loop, on the steps of the sequence with the full cache\n\n" +
         cube_table(restricted(runs, "run", compressed), style, open_loop_names());
}

// Nothing if no two runs could be ordered.
std::string correlation_text(const Cube& of_kind, const TextStyle& style) {
  std::string text;
  const Column& outcomes = of_kind.axes[0]->keys[0];
  for (int64_t outcome = 0; outcome < outcomes.size(); ++outcome) {
    const Cube found = at_place(of_kind, "outcome", outcome);
    if (!found.find("of_means")->says_something() && !found.find("pairs")->says_something()) continue;
    text += fmt::format(
        "\nDo these order the policies as {} does? Spearman's rank correlation of a task, pairs alike; other_half: the ceiling\n\n{}",
        outcomes.text(outcome), cube_table(side_by_side(found, "budget", "budget"), style));
  }
  return text;
}

std::string heading(const EvaluateReport& report) {
  const traces::ModelConfig& model = report.result.model;
  double prefill = 0, decode = 0;
  for (const TaskResult& task : report.result.results) {
    prefill += task.prefill_seconds;
    decode += task.decode_seconds;
  }
  return fmt::format(
      "{}\n  model {}\n  {} layers, {}; {} tasks, {}, {}; {:.1f} s of prefill, {:.1f} s of decoding\n",
      one_line(report.model_path), traces::printable(model.name, traces::kMostQuoted), model.layers,
      heads_text(model.query_heads, model.kv_heads, report.result.options.heads), report.result.tasks.size(),
      name(report.result.options.dtype), report.backend(), prefill, decode);
}

}  // namespace

std::string text_report(const EvaluateReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  std::string text = heading(report);
  TextStyle whole = style;
  whole.width = 0;
  DepthTables depths(*part.find("depths"));
  const Axis& kinds = *part.find("runs")->axes[0];
  for (int64_t kind = 0; kind < kinds.size(); ++kind) {
    const Cube runs = at_place(*part.find("runs"), "kind", kind);
    const std::string& name = kinds.keys[0].texts()[static_cast<size_t>(kind)];
    const std::string tasks = kinds.keys[2].text(kind);
    text += fmt::format("\n{}: {} task{}\n\n{}", traces::printable(name), tasks, tasks == "1" ? "" : "s",
                        cube_table(runs, style, columns));
    if (kinds.keys[1].text(kind) == "answer") text += depths.next(name, whole);
    if (columns.empty()) text += open_loop_table(runs, style);
    text += correlation_text(at_place(*part.find("correlations"), "kind", kind), whole);
    if (style.plot)
      text += bar_chart(fmt::format("KL by budget, {}", traces::printable(name)),
                        bars_of(runs, "label", "budget", "kl"), style);
  }
  return text;
}

}  // namespace kvbound::sim
