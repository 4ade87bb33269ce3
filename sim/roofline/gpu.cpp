#include "gpu.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/json_field.hpp>
#include <kvbound/traces/messages.hpp>

#include "embedded.hpp"

namespace kvbound::sim {
namespace {

struct KnownGpu {
  std::string_view name;
  std::string_view document;
};
constexpr KnownGpu kGpus[] = {{"h100", kH100File}, {"h200", kH200File}};

}  // namespace

Gpu Gpu::named(std::string_view name) {
  const auto* const known = std::ranges::find(kGpus, name, &KnownGpu::name);
  if (known == std::end(kGpus)) {
    throw UsageError(
        fmt::format("no model of a GPU {}; known: {}", traces::quoted(name), fmt::join(gpu_names(), ", ")));
  }
  const std::string path = fmt::format("sim/roofline/{}.json", known->name);
  const traces::Json json = traces::parse_strict_json(path, 0, "", known->document);
  const traces::JsonField root(path, "", json);
  Gpu gpu;
  gpu.name_ = root.member("name").text();
  for (const auto& [constant, facts] : root.member("constants").members()) {
    const auto unit = facts.find("unit");
    gpu.constants_.push_back({constant, facts.member("value").positive(), unit ? unit->text() : "",
                              facts.member("source").text()});
  }
  for (const traces::JsonField& each : root.member("measured").items(true)) {
    gpu.measured_.push_back({each.member("operation").text(), each.member("seconds").positive(),
                             each.member("predicted").positive(), each.member("from").text()});
  }
  return gpu;
}

double Gpu::of(std::string_view constant) const {
  const auto found = std::ranges::find(constants_, constant, &GpuConstant::name);
  if (found == constants_.end()) throw std::logic_error(fmt::format("{} has no {}", name_, constant));
  return found->value;
}

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const KnownGpu& gpu : kGpus) names.emplace_back(gpu.name);
  return names;
}

}  // namespace kvbound::sim
