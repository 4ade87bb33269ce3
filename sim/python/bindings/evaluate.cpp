// A model that decodes through compressed caches: sim/evaluate, with methods of Python.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/evaluate/evaluate.hpp>
#include <kvbound/sim/evaluate/evaluate_cubes.hpp>
#include <kvbound/sim/evaluate/tasks.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/evaluate_report.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/models/checkpoint.hpp>
#include <kvbound/traces/sha256.hpp>

#include "bindings.hpp"
#include "interrupts.hpp"
#include "layer.hpp"
#include "method.hpp"
#include "result.hpp"
#include "runs.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

std::string hash_of(const std::vector<std::string>& paths) {
  std::vector<std::unique_ptr<traces::InputFile>> files;
  std::vector<const traces::InputFile*> views;
  for (const std::string& path : paths)
    views.push_back(files.emplace_back(std::make_unique<traces::InputFile>(path)).get());
  return traces::sha256_of(views, {});
}

class Evaluated final : public Result {
 public:
  Evaluated(sim::EvaluateReport report, std::vector<std::string> model)
      : report_(std::move(report)), model_(std::move(model)) {}

  const char* command() const override { return "evaluate"; }
  sim::Part part(bool) const override {
    if (report_.model_sha256.empty()) report_.model_sha256 = hash_of(model_);
    return evaluate_part(report_);
  }
  std::string text(const sim::TextStyle& style) const override {
    return text_report(report_, evaluate_part(report_), style);
  }
  sim::Json provenance() const override { return sim::provenance(sim::environment(), report_.seed); }

 private:
  mutable sim::EvaluateReport report_;  // the model is hashed when that is needed
  std::vector<std::string> model_;      // its files
};

struct EvaluateWishes {
  std::optional<int64_t> steps;
  std::string dtype, heads;
  int64_t window = 0, recall = 0, seed = 0;
};

// tasks_path  for messages
// tasks       the file's text
std::shared_ptr<Evaluated> evaluate(const std::string& model, const std::string& tasks_path,
                                    const std::string& tasks_text, const WantedRuns& wanted,
                                    const nb::dict& methods, const EvaluateWishes& wishes,
                                    const nb::object& progress) {
  const sim::GivenMethods own = methods_of(methods);
  const nb::gil_scoped_release free;
  const traces::Checkpoint checkpoint(model);
  std::vector<sim::Task> tasks = sim::tasks_of(tasks_path, tasks_text, checkpoint.config().vocabulary);
  if (wishes.steps) sim::shorten(tasks, *wishes.steps);
  sim::EvaluateReport report;
  report.base = wanted.base_policy();
  report.seed = wishes.seed;
  report.model_path = model;
  report.tasks_path = tasks_path;
  report.tasks_sha256 = traces::sha256_of(tasks_text);
  report.step_limit = wishes.steps;
  sim::EvaluateOptions& options = report.result.options;
  options.runs = wanted.runs();
  options.given = sim::given_sources(options.runs, own);
  options.dtype = wishes.dtype == "BF16" ? Dtype::bf16 : wishes.dtype == "F16" ? Dtype::f16 : Dtype::f32;
  options.heads = cache_heads_of(wishes.heads);
  options.window = wishes.window;
  options.recall_of = wishes.recall;
  options.runs = sim::with_names(options.runs, require_valid(options, tasks, checkpoint.config()));
  report.result = sim::evaluate(checkpoint, tasks, options, nullptr,
                                [&](int64_t done, int64_t whole) { let_python_in(progress, done, whole); });
  report.result.options.given = {};  // which would keep the caller's methods alive
  return std::make_shared<Evaluated>(std::move(report), checkpoint.paths());
}

}  // namespace

void bind_evaluate(nb::module_& module) {
  nb::class_<Evaluated, Result>(module, "Evaluated");
  module.def(
      "evaluate",
      [](const std::string& model, const std::string& tasks_path, const std::string& tasks_text,
         const WantedRuns& wanted, const nb::dict& methods, std::optional<int64_t> steps,
         const std::string& dtype, const std::string& heads, int64_t window, int64_t recall, int64_t seed,
         const nb::object& progress) {
        return evaluate(model, tasks_path, tasks_text, wanted, methods,
                        {steps, dtype, heads, window, recall, seed}, progress);
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
      nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace kvbound::python
