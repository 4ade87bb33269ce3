// The text that `bench` prints, and its JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/bench/bench.hpp>
#include <kvbound/sim/bench/device_bench.hpp>
#include <kvbound/sim/bench/peer.hpp>

namespace kvbound::sim {

struct BenchReport {
  std::string backend;
  BenchOptions options;
  std::optional<Accelerator> accelerator;  ///< the device of a device backend
  std::vector<BenchResult> results;
  std::optional<Peer> peer = std::nullopt;  ///< whose times are shown beside the results
};

/// The text before the first measurement: the configuration and the table's headings.
std::string heading(const BenchReport& report);

/// One operation's rows of the table.
std::string text(const BenchResult& result);

/// A peer's row below them, and how many times as long it took, or that it has no counterpart.
std::string text(const Peer& peer, const BenchResult& result);

/// What a peer measured and this run did not, on a line; empty if there is nothing.
std::string only_of_peer_text(const BenchReport& report);

/// What an operation asks of a device, as in both documents of bench.
nlohmann::ordered_json requests_json(const cuda::DeviceCounters& requests);

/// The report as sim/schemas/bench.schema.json describes it.
nlohmann::ordered_json to_json(const BenchReport& report);

}  // namespace kvbound::sim
