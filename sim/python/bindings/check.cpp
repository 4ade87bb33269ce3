// Checks of kernels' results in memory: sim/check, on arrays.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/check/operations.hpp>
#include <kvbound/sim/figures/document.hpp>
#include <kvbound/sim/report/check_against_report.hpp>
#include <kvbound/sim/report/check_report.hpp>
#include <kvbound/sim/report/environment.hpp>

#include "arrays.hpp"
#include "bindings.hpp"
#include "interrupts.hpp"
#include "result.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

using sim::CheckReport;
using sim::CheckResult;
using sim::TensorAgreement;

// What a check found.
class Checked {
 public:
  Checked(CheckResult result, CheckReport report) : result_(std::move(result)), report_(std::move(report)) {}
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;

  const CheckResult& result() const { return result_; }
  const CheckReport& report() const { return report_; }
  std::string verdict() const { return sim::word(report_.verdict()); }
  sim::Part part(const std::string& name = {}) const {
    CheckReport report = report_;
    if (!name.empty()) report.path = name;
    return sim::check_part(report);
  }
  std::string text(int64_t width) const { return sim::text_report(report_, part(), {.width = width}); }
  // One line: what differs, what is unlikely, or why nothing can be said; empty if nothing is wrong.
  std::string message() const { return sim::text_of_verdict(report_.summaries()); }
  std::vector<std::string> unlikely() const { return unlikely_texts(sim::ChanceVerdict(report_.tensors)); }
  const TensorAgreement& tensor(const std::string& name) const {
    for (const TensorAgreement& one : result_.tensors) {
      if (one.tensor == name) return one;
    }
    throw nb::key_error(name.c_str());
  }

 private:
  CheckResult result_;
  CheckReport report_;
};

// Options as a file has them, without those that are None.
std::map<std::string, std::string> texts_of(const nb::dict& options) {
  std::map<std::string, std::string> texts;
  for (const auto [name, value] : options) {
    if (value.is_none()) continue;
    const bool is_bool = PyBool_Check(value.ptr());
    texts.emplace(nb::cast<std::string>(name), is_bool
                                                   ? std::string(value.ptr() == Py_True ? "true" : "false")
                                                   : nb::cast<std::string>(nb::str(value)));
  }
  return texts;
}

CheckResult result_of(const sim::CheckOperation& operation, sim::CheckFile& file) {
  return operation.result(file, [](int64_t, int64_t) { let_python_in(); });
}

std::shared_ptr<Checked> check(const std::string& operation_name, const nb::dict& arrays,
                               const nb::dict& options) {
  const sim::CheckOperation& operation = sim::check_operation(operation_name);
  sim::CheckFile file(std::make_unique<ArrayTensors>("check " + operation_name, arrays), texts_of(options));
  const nb::gil_scoped_release free;
  CheckResult result = result_of(operation, file);
  CheckReport report = sim::check_report(operation, file, result);
  return std::make_shared<Checked>(std::move(result), std::move(report));
}

// Two kernels' results of the same inputs.
class Compared final : public Result {
 public:
  explicit Compared(sim::CheckAgainstReport report) : report_(std::move(report)) {}

  const char* command() const override { return "check-against"; }
  sim::Part part(bool) const override { return check_against_part(report_); }
  std::string text(const sim::TextStyle& style) const override {
    return text_report(report_, check_against_part(report_), style);
  }
  sim::Json provenance() const override { return sim::provenance(); }
  std::string verdict() const { return sim::word(report_.verdict()); }
  std::string message() const {
    if (report_.verdict() == sim::Verdict::agrees) return "";
    return sentence({report_.a.path, report_.a.verdict()}, {report_.b.path, report_.b.verdict()},
                    report_.compared);
  }
  std::vector<std::string> unlikely() const {
    std::vector<std::string> all;
    for (const CheckReport* report : {&report_.a, &report_.b}) {
      for (const std::string& text : unlikely_texts(sim::ChanceVerdict(report->tensors)))
        all.push_back(report->path + ": " + text);
    }
    return all;
  }

 private:
  sim::CheckAgainstReport report_;
};

struct NamedArrays {
  std::string name;
  nb::dict arrays;
};

std::shared_ptr<Compared> compare(const std::string& operation_name, const NamedArrays& a,
                                  const NamedArrays& b, const nb::dict& given_options, bool identical) {
  const sim::CheckOperation& operation = sim::check_operation(operation_name);
  const auto options = texts_of(given_options);
  sim::CheckFile first(std::make_unique<ArrayTensors>(a.name, a.arrays), options),
      second(std::make_unique<ArrayTensors>(b.name, b.arrays), options);
  const nb::gil_scoped_release free;
  const CheckResult of_a = result_of(operation, first), of_b = result_of(operation, second);
  return std::make_shared<Compared>(
      sim::check_against_report(operation, {first, of_a}, {second, of_b}, identical));
}

nb::object worst(const TensorAgreement& tensor) {
  if (!tensor.worst) return nb::none();
  const sim::Offender& one = *tensor.worst;
  nb::list index;
  for (const int64_t i : one.index) index.append(i);
  return nb::make_tuple(tensor.tensor, nb::tuple(index), one.claimed, one.expected, one.error, one.bound,
                        one.ulps(), one.note);
}

// The functional "gain" and others: of all rows together, and of the worst.
nb::dict functionals(const TensorAgreement& tensor) {
  nb::dict all;
  for (const sim::FunctionalAgreement& one : tensor.functionals) {
    nb::list at;
    for (const int64_t i : one.worst_at) at.append(i);
    all[one.name.c_str()] = nb::make_tuple(one.all.value, one.all.band, one.worst.value, one.worst.band,
                                           nb::tuple(at), one.rows, one.outside);
  }
  return all;
}

// Elements, in C order of the tensor: those outside their bounds, and the first ones of rows that are
// outside as wholes.
std::vector<int64_t> outside(const TensorAgreement& tensor) {
  std::vector<int64_t> all = tensor.outside_at;
  for (const sim::FunctionalAgreement& one : tensor.functionals)
    all.insert(all.end(), one.outside_at.begin(), one.outside_at.end());
  return all;
}

// results  with a name each, or ""
std::string document(const std::vector<std::pair<std::shared_ptr<Checked>, std::string>>& results) {
  std::string text;
  sim::DocumentWriter writer("check", [&](std::string_view piece) { text += piece; });
  for (const auto& [one, name] : results) writer.add(one->part(name));
  writer.finish(sim::provenance());
  return text;
}

}  // namespace

void bind_checks(nb::module_& module) {
  nb::class_<Checked>(module, "Checked")
      .def_prop_ro("verdict", &Checked::verdict)
      .def("text", &Checked::text)
      .def_prop_ro("message", &Checked::message)
      .def_prop_ro("unlikely", &Checked::unlikely)
      .def_prop_ro("tensors",
                   [](const Checked& all) {
                     std::vector<std::string> names;
                     for (const TensorAgreement& one : all.result().tensors) names.push_back(one.tensor);
                     return names;
                   })
      .def("worst", [](const Checked& all, const std::string& name) { return worst(all.tensor(name)); })
      .def("functionals",
           [](const Checked& all, const std::string& name) { return functionals(all.tensor(name)); })
      .def("outside", [](const Checked& all, const std::string& name) { return outside(all.tensor(name)); })
      .def("diagnosis",
           [](const Checked& all, const std::string& name) { return sim::diagnosis_text(all.tensor(name)); });
  nb::class_<Compared, Result>(module, "Compared")
      .def_prop_ro("verdict", &Compared::verdict)
      .def_prop_ro("message", &Compared::message)
      .def_prop_ro("unlikely", &Compared::unlikely);
  module.def("check", &check);
  module.def("compare",
             [](const std::string& operation, const std::string& a_name, const nb::dict& a,
                const std::string& b_name, const nb::dict& b, const nb::dict& options, bool identical) {
               return compare(operation, {a_name, a}, {b_name, b}, options, identical);
             });
  module.def("document", &document);
  module.def("copies", &ArrayTensors::copies);
}

}  // namespace kvbound::python
