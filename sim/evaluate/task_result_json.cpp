#include "task_result_json.hpp"

#include <string>

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

namespace {

// Throws Error unless no number in the JSON is negative; `name` is that of the member or of its list.
void require_nonnegative(const std::string& name, const FieldsJson& json) {
  if (json.is_number() && json < 0) fields::refuse(name.c_str(), json, "a number >= 0");
  if (!json.is_structured()) return;
  for (const auto& [key, value] : json.items()) require_nonnegative(json.is_object() ? key : name, value);
}

}  // namespace

FieldsJson to_json(const TaskResult& result) { return fields_of(result); }

TaskResult task_result_of(std::string_view text, const WrittenLimits& limits, size_t* taken) {
  const auto result = parse_fields<TaskResult>("the task", text, limits, taken);
  require_nonnegative("the task", fields_of(result));
  return result;
}

}  // namespace kvbound::sim
