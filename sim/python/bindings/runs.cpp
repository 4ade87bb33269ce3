#include "runs.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/sim/options/policy.hpp>

#include "bindings.hpp"

namespace nb = nanobind;

namespace kvbound::python {

std::vector<sim::Run> WantedRuns::runs() const {
  std::vector<sim::Budget> all;
  for (const std::string& text : budgets) all.push_back(sim::parse_budget(text));
  return sim::every_run(sim::named_policies(policies, base), all, backends);
}

std::optional<Policy> WantedRuns::base_policy() const {
  if (!base) return std::nullopt;
  return sim::parse_policy(*base);
}

void bind_runs(nb::module_& module) {
  using Texts = std::vector<std::string>;
  nb::class_<WantedRuns>(module, "WantedRuns")
      .def(
          "__init__",
          [](WantedRuns* self, Texts policies, Texts budgets, Texts backends,
             std::optional<std::string> base) {
            new (self)
                WantedRuns{std::move(policies), std::move(budgets), std::move(backends), std::move(base)};
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace kvbound::python
