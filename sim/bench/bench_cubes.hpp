// What bench measured as cubes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/figures/list_cube.hpp>

#include "bench.hpp"
#include "device_bench.hpp"
#include "peer.hpp"

namespace kvbound::sim {

struct BenchReport {
  std::string backend;
  BenchOptions options;
  std::optional<Accelerator> accelerator = {};  ///< the device of a device backend
  std::vector<BenchResult> results = {};
  std::optional<Peer> peer = {};  ///< whose times are shown beside the results
};

/// The document's part.
///
///     operations [operation]  times, ratios, goals, shares of rooflines, requests, a peer's times
///     against    [against]    times of what operations are measured against in the same rounds
///     ceilings   [ceiling]    rates of a device's rooflines, over all rounds of all operations
Part bench_part(const BenchReport& report);

/// The figures of the table, for --columns.
std::vector<Figure> bench_columns();

nlohmann::ordered_json shape_facts(const BenchShape& shape);

/// Keys that rows of any cube of bench begin with: the operation, and the policy that it is run by.
///
/// Row  has the operation's `result`
template <class Row>
std::vector<FigureOf<Row>> operation_keys() {
  return {{text_figure("operation", "its name on the command line"),
           [](const Row& row) { return row.result->operation; }},
          {text_figure("label", "policy", "the policy as it was named, of operations that are run by one"),
           [](const Row& row) { return row.result->label; }},
          {text_figure("policy", "canonical: every component, every option", Shown::if_asked),
           [](const Row& row) { return row.result->policy; }}};
}

/// An operation with what was timed of it: itself, or what it is measured against. Predictions have no times.
struct BenchRow {
  const BenchResult* result;
  const BenchTimes* times = nullptr;
};

/// Appends what operations ask of the device.
void add_requests(std::vector<FigureOf<BenchRow>>& figures);

}  // namespace kvbound::sim
