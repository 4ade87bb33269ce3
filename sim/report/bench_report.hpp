// What bench prints and writes.
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
  std::optional<Accelerator> accelerator;  ///< that a device backend ran on
  std::vector<BenchResult> results;
};

/// What is known before anything is measured, and the table's head.
std::string heading(const BenchReport& report);

/// The table's rows of one operation.
std::string text(const BenchResult& result);

/// As sim/schemas/bench.schema.json describes it.
nlohmann::ordered_json to_json(const BenchReport& report);

}  // namespace kvbound::sim
