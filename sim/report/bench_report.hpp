// The text that `bench` prints, and its JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/bench/bench.hpp>
#include <kvbound/sim/bench/device_bench.hpp>

namespace kvbound::sim {

struct BenchReport {
  std::string backend;
  BenchOptions options;
  std::optional<Accelerator> accelerator;  ///< the device of a device backend
  std::vector<BenchResult> results;
};

/// The text before the first measurement: the configuration and the table's headings.
std::string heading(const BenchReport& report);

/// One operation's rows of the table.
std::string text(const BenchResult& result);

/// The report as sim/schemas/bench.schema.json describes it.
nlohmann::ordered_json to_json(const BenchReport& report);

}  // namespace kvbound::sim
