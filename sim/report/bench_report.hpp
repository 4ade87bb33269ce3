// The text that `bench` prints, operation by operation, as soon as one is measured.
#pragma once

#include <string>

#include <kvbound/sim/bench/bench_cubes.hpp>

namespace kvbound::sim {

/// The text before the first measurement: the configuration.
std::string heading(const BenchReport& report);
std::string rows_heading();

/// One operation's rows.
std::string text(const BenchResult& result);

/// A peer's row below them, and how many times as long it took, or that it has no counterpart.
std::string text(const Peer& peer, const BenchResult& result);

/// What a peer measured and this run did not, on a line; empty if there is nothing.
std::string only_of_peer_text(const BenchReport& report);

}  // namespace kvbound::sim
