// Results of an implementation on a trace, held against the reference: sim/diff, on arrays.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/report/diff_report.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/traces/safetensors.hpp>

#include "arrays.hpp"
#include "bindings.hpp"
#include "interrupts.hpp"
#include "result.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

class Diffed final : public Result {
 public:
  explicit Diffed(sim::DiffReport report) : report_(std::move(report)) {}

  const char* command() const override { return "diff"; }
  sim::Part part(bool) const override { return diff_part(report_); }
  std::string text(const sim::TextStyle& style) const override {
    return text_report(report_, diff_part(report_), style);
  }
  sim::Json provenance() const override { return sim::provenance(); }

  std::string verdict() const { return sim::word(report_.verdict()); }
  std::string message() const { return sim::text_of_verdict(report_.summaries()); }
  std::vector<std::string> unlikely() const { return unlikely_texts(report_.by_chance()); }

 private:
  sim::DiffReport report_;
};

std::shared_ptr<Diffed> judged(const traces::Trace& trace, const std::string& sha256,
                               const sim::DumpFile& dump, const nb::object& progress) {
  sim::DiffReport report = sim::diff_report(trace, sha256, dump);
  int64_t done = 0;
  for (const int64_t layer : dump.info().layers) {
    sim::judge_layer(trace.read_layer(layer), dump, report);
    let_python_in(progress, ++done, std::ssize(dump.info().layers));
  }
  return std::make_shared<Diffed>(std::move(report));
}

std::shared_ptr<Diffed> diff_file(const traces::Trace& trace, const std::string& path,
                                  const nb::object& progress) {
  const nb::gil_scoped_release free;
  const sim::DumpFile dump(path, trace.info(), traces::kDefaultHeaderLimit);
  return judged(trace, trace.sha256(), dump, progress);
}

// texts  a dump's metadata, but for the trace's hash
std::shared_ptr<Diffed> diff_arrays(const traces::Trace& trace, const std::string& name,
                                    const nb::dict& arrays, std::map<std::string, std::string> texts,
                                    const nb::object& progress) {
  texts["trace_sha256"] = [&] {
    const nb::gil_scoped_release free;
    return trace.sha256();
  }();
  const std::string sha256 = texts["trace_sha256"];
  const sim::DumpFile dump(std::make_unique<ArrayTensors>(name, arrays, texts), trace.info());
  const nb::gil_scoped_release free;
  return judged(trace, sha256, dump, progress);
}

}  // namespace

void bind_diff(nb::module_& module) {
  nb::class_<Diffed, Result>(module, "Diffed")
      .def_prop_ro("verdict", &Diffed::verdict)
      .def_prop_ro("message", &Diffed::message)
      .def_prop_ro("unlikely", &Diffed::unlikely);
  module.def("diff_file", &diff_file, nb::arg(), nb::arg(), nb::arg().none());
  module.def("diff_arrays", &diff_arrays, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace kvbound::python
