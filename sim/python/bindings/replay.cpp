// Replays of traces: sim/replay, with methods of Python.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/layer_choice.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/replay_report.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/trace.hpp>

#include "bindings.hpp"
#include "interrupts.hpp"
#include "method.hpp"
#include "result.hpp"
#include "runs.hpp"
#include "views.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

using sim::ReplayDetail;
using traces::Trace;

class Replayed final : public Result {
 public:
  Replayed(std::shared_ptr<const Trace> trace, sim::ReplayReport report, std::optional<Policy> base)
      : trace_(std::move(trace)), report_(std::move(report)), base_(std::move(base)) {}

  const char* command() const override { return "replay"; }
  sim::Part part(bool with_rows) const override {
    if (report_.sha256.empty()) report_.sha256 = trace_->sha256();
    return replay_part(report_, base_, with_rows ? ReplayDetail::rows : ReplayDetail::document);
  }
  std::string text(const sim::TextStyle& style) const override {
    return text_report(report_, replay_part(report_, base_, ReplayDetail::table), style);
  }
  sim::Json provenance() const override { return sim::provenance(); }

  std::vector<std::vector<sim::LayerRecord>> records = {};  // [runs][layers], if they were asked for

 private:
  std::shared_ptr<const Trace> trace_;
  mutable sim::ReplayReport report_;  // hashed when it is needed
  std::optional<Policy> base_;
};

sim::Scope scope_of(const Trace& trace, const std::optional<std::string>& layers,
                    std::optional<int64_t> steps, int64_t recall, bool merge_bounds, bool centred_bound) {
  const traces::TraceInfo& info = trace.info();
  sim::Scope scope{{},
                   steps.value_or(info.decode_tokens),
                   std::min(recall, info.prompt_tokens),
                   merge_bounds,
                   centred_bound};
  if (layers) {
    const auto chosen = sim::layers_named(*layers, info);
    if (!chosen)
      throw sim::UsageError("layers: is " + traces::quoted(*layers) + "; expected " +
                            sim::expected_layers(info));
    scope.layers = *chosen;
  } else {
    for (int64_t l = 0; l < info.layers; ++l) scope.layers.push_back(l);
  }
  if (scope.steps < 0 || scope.steps > info.decode_tokens)
    throw sim::UsageError("steps: is " + std::to_string(scope.steps) + "; expected 0 to " +
                          std::to_string(info.decode_tokens));
  if (recall < 1) throw sim::UsageError("recall: is " + std::to_string(recall) + "; expected 1 or more");
  return scope;
}

std::shared_ptr<Replayed> replay(std::shared_ptr<const Trace> trace, const WantedRuns& wanted,
                                 const nb::dict& methods, const std::optional<std::string>& layers,
                                 std::optional<int64_t> steps, int64_t recall, bool merge_bounds,
                                 bool centred_bound, bool keep_records, const nb::object& progress) {
  const sim::GivenMethods own = methods_of(methods);
  const nb::gil_scoped_release free;
  for (const std::string& backend : wanted.backends) sim::require_backend(backend);
  const std::vector<sim::Run> runs = wanted.runs();
  const sim::Scope scope = scope_of(*trace, layers, steps, recall, merge_bounds, centred_bound);
  const sim::GivenSources sources = sim::given_sources(runs, own);
  sim::ReplayReport report;
  if (!sources.files.empty()) report.sha256 = trace->sha256();
  sim::GivenFiles given;
  if (!sources.empty())
    given = sim::GivenFiles(sources, sim::given_subject(trace->info(), report.sha256, scope.layers));
  std::vector<std::vector<sim::LayerRecord>> records(keep_records ? runs.size() : 0);
  sim::ReplayObserver observer;
  if (keep_records) {
    observer.recorded = [&](size_t run, int64_t, const sim::LayerRecord& record) {
      records[run].push_back(record);
    };
  }
  report.result = sim::replay(
      *trace, runs, scope, observer,
      [&](int64_t done, int64_t whole) { let_python_in(progress, done, whole); }, given);
  auto replayed = std::make_shared<Replayed>(std::move(trace), std::move(report), wanted.base_policy());
  replayed->records = std::move(records);
  return replayed;
}

nb::list lists_of(const std::vector<std::vector<int64_t>>& heads) {
  nb::list all;
  for (const std::vector<int64_t>& head : heads) all.append(array_of(head));
  return all;
}

nb::list merges_of(const std::vector<HeadMerge>& merges) {
  nb::list all;
  for (const HeadMerge& merge : merges) {
    nb::dict one;
    one["positions"] = array_of(merge.positions);
    one["votes"] = array_of(merge.votes);
    one["keys"] = copy_of(merge.keys);
    one["values"] = copy_of(merge.values);
    all.append(one);
  }
  return all;
}

// [steps, kv_heads] of what only some policies have; None of the others
template <std::vector<int64_t> StepRecord::*figure>
nb::object of_steps(const std::vector<StepRecord>& steps) {
  std::vector<int64_t> all;
  for (const StepRecord& step : steps) all.insert(all.end(), (step.*figure).begin(), (step.*figure).end());
  if (all.empty()) return nb::none();
  return array_of(std::move(all), {steps.size(), (steps.front().*figure).size()});
}

nb::object outputs_of(const std::vector<StepRecord>& steps) {
  std::vector<double> all;
  for (const StepRecord& step : steps) {
    const VectorView numbers = step.output.numbers();
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  const Matrix none, &first = steps.empty() ? none : steps.front().output;
  return array_of(std::move(all),
                  {steps.size(), static_cast<size_t>(first.rows()), static_cast<size_t>(first.cols())});
}

// What a run did in a layer: kvbound/replays.py names it.
nb::dict record_of(const Replayed& replayed, size_t run, size_t layer) {
  const sim::LayerRecord& record = replayed.records.at(run).at(layer);
  const PromptRecord& prompt = record.prompt;
  const auto matrix = [](const std::optional<Matrix>& one) {
    return one ? copy_of(*one) : nb::object(nb::none());
  };
  nb::dict all;
  all["kept"] = lists_of(prompt.kept);
  all["stage_one"] = lists_of(prompt.stage_one);
  all["score_positions"] = array_of(prompt.score_positions);
  all["score"] = copy_of(prompt.score);
  all["stage_two_score"] = matrix(prompt.stage_two_score);
  all["projected_value_norms"] = matrix(prompt.projected_value_norms);
  all["merges"] = merges_of(prompt.merges);
  all["outputs"] = outputs_of(record.steps);
  all["evicted"] = of_steps<&StepRecord::evicted>(record.steps);
  all["merged_into"] = of_steps<&StepRecord::merged_into>(record.steps);
  return all;
}

}  // namespace

void bind_replay(nb::module_& module) {
  nb::class_<Replayed, Result>(module, "Replayed").def("record", &record_of);
  module.def("replay", &replay, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace kvbound::python
