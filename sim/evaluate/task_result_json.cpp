#include "task_result_json.hpp"

#include <kvbound/sim/options/fields.hpp>

namespace kvbound::sim {

template <>
struct Fields<RunFigures> {
  static void visit(auto& figures, const auto& visit) {
    visit("kl", figures.kl);
    visit("nll", figures.nll);
    visit("top1", figures.top1);
    visit("hidden_error", figures.hidden_error);
    visit("entries", figures.entries);
    visit("stored_entries", figures.stored_entries);
    for (const OpenLoopFigure& one : kOpenLoopFigures) visit(one.name, figures.open_loop.*one.figure);
    visit("violations", figures.violations);
  }
};

template <>
struct Fields<TaskResult> {
  static void visit(auto& result, const auto& visit) {
    visit("id", result.id);
    visit("steps", result.steps);
    visit("full_nll", result.full_nll);
    visit("full_top1", result.full_top1);
    visit("prefill_seconds", result.prefill_seconds);
    visit("decode_seconds", result.decode_seconds);
    visit("runs", result.runs);
  }
};

FieldsJson to_json(const RunFigures& run) { return fields_of(run); }
FieldsJson to_json(const TaskResult& result) { return fields_of(result); }

TaskResult task_result_of(std::string_view text) {
  return parse_fields<TaskResult>("the task", text, Numbers::nonnegative);
}

}  // namespace kvbound::sim
