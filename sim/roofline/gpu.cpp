#include "gpu.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <kvbound/sim/options/command_line.hpp>
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
    throw UsageError(fmt::format("no model of a GPU '{}'; known: {}", traces::printable(name),
                                 fmt::join(gpu_names(), ", ")));
  }
  const auto document = nlohmann::ordered_json::parse(known->document);
  Gpu gpu;
  gpu.name_ = document.at("name");
  for (const auto& [constant, facts] : document.at("constants").items()) {
    gpu.constants_.push_back({constant, facts.at("value"), facts.value("unit", ""), facts.at("source")});
  }
  for (const auto& each : document.at("measured")) {
    gpu.measured_.push_back(
        {each.at("operation"), each.at("seconds"), each.at("predicted"), each.at("from")});
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
